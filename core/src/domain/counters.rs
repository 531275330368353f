//! Counters that only rise. Each has its own type, so that they cannot be confused.

claimgate_shared::monotonic! {
    /// The number of a campaign's load into Redis; 0 before the first load. Writes of an older epoch are
    /// rejected.
    Epoch;
    /// A token that SQL issues to each core that is about to suspend a campaign in Redis. Redis rejects
    /// writes under an older token.
    FencingToken;
    /// The number of a change in SQL, across all campaigns; 0 before the first change. Changes become visible
    /// in the order of their numbers.
    ChangeNumber;
    /// The number of a connection to Redis, from 1. A different connection may lead to a different server.
    Generation;
}
