//! Splits long lists into parts of bounded weight.

/// Returns `items` in parts that weigh at most `weight_max` each. An item that weighs more is a part by itself.
pub fn parts<T>(items: &[T], weight_max: u64, weight: impl Fn(&T) -> u64) -> impl Iterator<Item = &[T]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let mut total = 0;
        let fits = |item: &&T| {
            total += weight(item);
            total <= weight_max
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (part, left) = rest.split_at_checked(count)?;
        rest = left;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_weighs_as_much_as_is_allowed() {
        let of = |items: &[u64]| parts(items, 10, |item| *item).map(<[u64]>::to_vec).collect::<Vec<_>>();
        assert_eq!(of(&[]), Vec::<Vec<u64>>::new());
        assert_eq!(of(&[4, 6, 1]), [vec![4, 6], vec![1]]);
        assert_eq!(of(&[11, 0, 10, 30]), [vec![11], vec![0, 10], vec![30]], "a heavy item is alone");
    }
}
