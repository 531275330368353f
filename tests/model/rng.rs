//! What a run draws from a generator: counts, odds, choices.

/// A generator's draws, the same for the same seed, for ever.
#[derive(Debug, Clone)]
pub struct Rng(support::rng::Rng);

impl Rng {
    /// From a seed.
    pub fn of(seed: u64) -> Self {
        Self(support::rng::Rng::of(seed))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number of `from..=upto`.
    pub fn within(&mut self, from: i64, upto: i64) -> i64 {
        let span = u64::try_from(upto - from).expect("forwards") + 1;
        from + i64::try_from(self.draw() % span).expect("a small span")
    }

    /// [`within`](Self::within), for small counts.
    pub fn count(&mut self, from: u32, upto: u32) -> u32 {
        u32::try_from(self.within(from.into(), upto.into())).expect("within")
    }

    /// True `percent` times in a hundred.
    pub fn percent(&mut self, percent: u32) -> bool {
        self.count(1, 100) <= percent
    }

    /// One of `items`; `None` when there are none.
    pub fn one_of<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let last = i64::try_from(items.len()).ok()? - 1;
        (last >= 0).then(|| &items[usize::try_from(self.within(0, last)).expect("an index")])
    }

    /// The item whose turn it is when each comes up as often as its weight says.
    pub fn weighted<T: Copy>(&mut self, items: &[(u32, T)]) -> T {
        let mut left = self.count(1, items.iter().map(|(weight, _)| weight).sum());
        for (weight, item) in items {
            if left <= *weight {
                return *item;
            }
            left -= weight;
        }
        unreachable!("weights are summed up")
    }
}
