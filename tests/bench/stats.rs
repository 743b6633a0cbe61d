//! Medians and ends of some numbers.

/// Numbers of one measure, in order.
pub struct Sorted(Vec<f64>);

impl Sorted {
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut numbers: Vec<f64> = numbers.into_iter().collect();
        assert!(!numbers.is_empty(), "nothing was measured");
        numbers.sort_by(f64::total_cmp);
        Self(numbers)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn min(&self) -> f64 {
        self.0[0]
    }

    pub fn max(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    /// The number that so many in a hundred are not above.
    pub fn percentile(&self, percent: usize) -> f64 {
        self.0[(self.0.len() * percent).div_ceil(100).max(1) - 1]
    }

    pub fn median(&self) -> f64 {
        self.percentile(50)
    }
}
