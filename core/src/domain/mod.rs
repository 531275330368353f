//! The types that both stores share: campaigns, claims, events, high-water marks. No I/O, no clock.

pub mod addition;
pub mod campaign;
pub mod campaign_change;
pub mod claim_record;
pub mod claim_transition;
pub mod counters;
pub mod event;
pub mod high_water_mark;
pub mod import;
pub mod not_ready;
pub mod replica_set;
pub mod utc_offsets;
pub mod webhook;
