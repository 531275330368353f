//! "Did you mean …?": the known name nearest to an unknown one.

/// Maximum length of a name that is compared: the cost is this length times the length of each candidate.
const NAME_BYTES_MAX: usize = 100;

/// Returns the candidate nearest to `name`, ignoring case; `None` if no candidate is near. If several
/// candidates are equally near, returns the first. Near means at most one edit per three characters; a name
/// of up to three characters must match.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let name = name.to_lowercase();
    let edits_max = if name.chars().count() < 4 { 0 } else { name.chars().count() / 3 };
    let edits = |candidate: &str| strsim::osa_distance(&name, &candidate.to_lowercase());
    let measured = candidates.into_iter().map(|candidate| (edits(candidate), candidate));
    measured.filter(|(edits, _)| *edits <= edits_max).min_by_key(|(edits, _)| *edits).map(|(_, found)| found)
}

/// Returns a suffix for an error message that suggests `near`.
pub fn suggestion(near: &str) -> String {
    format!("; did you mean {near}?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_near_and_a_different_name_is_not() {
        let known = ["tickets", "vouchers", "t1"];
        for (name, found) in [
            ("tickts", Some("tickets")),
            ("Tickets", Some("tickets")),
            ("voucehrs", Some("vouchers")),
            ("T1", Some("t1")),
            ("t2", None),
            ("coupons", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), found, "{name}");
        }
        assert_eq!(nearest(&"x".repeat(1_000_000), known), None);
    }
}
