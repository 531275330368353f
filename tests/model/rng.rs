//! Random counts, odds and choices for a run.

/// A generator: the same seed always gives the same values.
#[derive(Debug, Clone)]
pub struct Rng(support::rng::Rng);

impl Rng {
    /// Creates a generator from a seed.
    pub fn of(seed: u64) -> Self {
        Self(support::rng::Rng::of(seed))
    }

    /// Returns the next number.
    pub fn next_number(&mut self) -> u64 {
        self.0.next_number()
    }

    /// Returns a number in `from..=upto`.
    pub fn within(&mut self, from: i64, upto: i64) -> i64 {
        let span = u64::try_from(upto - from).expect("forwards") + 1;
        from + i64::try_from(self.next_number() % span).expect("a small span")
    }

    /// Returns a number in `from..=upto`, for small counts.
    pub fn count(&mut self, from: u32, upto: u32) -> u32 {
        u32::try_from(self.within(from.into(), upto.into())).expect("within")
    }

    /// Returns true in `percent` of a hundred cases.
    pub fn percent(&mut self, percent: u32) -> bool {
        self.count(1, 100) <= percent
    }

    /// Chooses one of `items`; `None` if there are none.
    pub fn one_of<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let last = i64::try_from(items.len()).ok()? - 1;
        (last >= 0).then(|| &items[usize::try_from(self.within(0, last)).expect("an index")])
    }

    /// Chooses an item with a probability proportional to its weight.
    pub fn weighted<T: Copy>(&mut self, items: &[(u32, T)]) -> T {
        let mut left = self.count(1, items.iter().map(|(weight, _)| weight).sum());
        for (weight, item) in items {
            if left <= *weight {
                return *item;
            }
            left -= weight;
        }
        unreachable!("the number never exceeds the sum of the weights")
    }
}
