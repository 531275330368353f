//! The events of a campaign that the metrics count as missing in SQL: each once, however often they are found missing.

use parking_lot::Mutex;

use crate::domain::counters::Epoch;

/// Missing events that this core has counted and that no load has restored yet.
#[derive(Debug, Default)]
pub struct CountedLosses(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// The epoch of these counts. A load restores all missing events, and begins a new epoch.
    epoch: Epoch,
    lost: u64,
    deleted: u64,
}

impl CountedLosses {
    /// Records that SQL has lost `found` events of `epoch`. Returns how many of them were not counted before.
    pub fn add_lost(&self, epoch: Epoch, found: u64) -> u64 {
        self.in_epoch(epoch, |counts| raise(&mut counts.lost, found))
    }

    /// Records that `found` events of `epoch` were deleted from the outbox. Returns how many of them were not counted
    /// before.
    pub fn add_deleted(&self, epoch: Epoch, found: u64) -> u64 {
        self.in_epoch(epoch, |counts| raise(&mut counts.deleted, found))
    }

    /// Returns how many of the `restored` events of `epoch` were not counted before, as lost or as deleted.
    pub fn uncounted(&self, epoch: Epoch, restored: u64) -> u64 {
        self.in_epoch(epoch, |counts| restored.saturating_sub(counts.lost + counts.deleted))
    }

    /// Keeps the counts of `epoch` in the epoch `next`, which began without a load.
    pub fn keep(&self, epoch: Epoch, next: Epoch) {
        self.in_epoch(epoch, |counts| counts.epoch = next);
    }

    fn in_epoch<T>(&self, epoch: Epoch, work: impl FnOnce(&mut Counts) -> T) -> T {
        let mut counts = self.0.lock();
        if counts.epoch != epoch {
            *counts = Counts { epoch, ..Counts::default() };
        }
        work(&mut counts)
    }
}

/// Raises `count` to `found`, and returns the difference; 0 if `count` is not lower.
fn raise(count: &mut u64, found: u64) -> u64 {
    let new = found.saturating_sub(*count);
    *count += new;
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_found_again_is_counted_once() {
        let (counted, epoch) = (CountedLosses::default(), Epoch::new(1));
        assert_eq!([10, 4, 10, 12].map(|found| counted.add_lost(epoch, found)), [10, 0, 0, 2]);
        assert_eq!([3, 3].map(|found| counted.add_deleted(epoch, found)), [3, 0]);
        assert_eq!(counted.uncounted(epoch, 20), 5, "15 were counted when they were found");
    }

    #[test]
    fn counts_end_with_a_load_but_not_with_an_adoption() {
        let (counted, [first, second, third]) = (CountedLosses::default(), [1, 2, 3].map(Epoch::new));
        assert_eq!((counted.add_lost(first, 10), counted.add_lost(second, 10)), (10, 10));
        counted.keep(second, third);
        assert_eq!(counted.add_lost(third, 10), 0, "an adoption restores nothing");
    }
}
