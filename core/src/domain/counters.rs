//! Numbers that only rise, each a type of its own: none is taken for another.

claimgate_shared::monotonic! {
    /// Which load of a campaign into Redis something belongs to, 0 before the first: what an older epoch still wants to
    /// write is refused.
    Epoch;
    /// Drawn from a campaign's row by each core that is about to suspend it in Redis: what is written there under an older
    /// one is refused.
    FencingToken;
    /// Which change of any campaign in SQL, 0 before the first: they become visible in their order.
    ChangeNumber;
    /// Which connection to Redis, from 1: another one may lead to another server.
    Generation;
}
