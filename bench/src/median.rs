//! The median of measured values.

/// Returns the median; for an even number of values, the mean of the two middle ones.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[length / 2],
        length => f64::midpoint(sorted[length / 2 - 1], sorted[length / 2]),
    }
}
