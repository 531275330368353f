//! The strategies, one file and one line each.

use crate::manager::Strategy;

macro_rules! strategies {
    ($($name:ident)*) => {
        $(mod $name;)*
        /// All of them, in the order of their rows.
        pub const STRATEGIES: &[Strategy] = &[$($name::STRATEGY.called(stringify!($name))),*];
    };
}

strategies! {
    sql_read_then_write
    redis_read_then_write
    process_mutex
    process_queue
    row_lock
    optimistic_version
    conditional_update
    split_rows
    unlock_before_commit
    user_lock
    decrement
    pipeline
    multi_exec
    watch
    lock_without_expiry
    lock_without_owner
    check_then_delete
    owned_lock
    reentrant_lock
    two_locks
    script_stock
    script_queue
    script_limits
    script_half_way
    count_then_insert
    stock_above_zero
    lock_without_nx
    endless_watchdog
    claimgate
}

/// Returns the strategies with these names or row numbers; all if `names` is empty.
pub fn select(names: &[String]) -> Result<Vec<&'static Strategy>, String> {
    let meant = |name: &String| {
        let found = STRATEGIES.iter().find(|one| one.name == *name || one.row.to_string() == *name);
        found.ok_or_else(|| format!("{name:?}: no such strategy; see --list"))
    };
    if names.is_empty() { Ok(STRATEGIES.iter().collect()) } else { names.iter().map(meant).collect() }
}
