//! Types shared by both stores: campaigns, claims, events, high-water marks. No I/O, no clock.

pub mod addition;
pub mod audit;
pub mod campaign;
pub mod campaign_change;
pub mod claim_record;
pub mod claim_transition;
pub mod codes;
pub mod counters;
pub mod days;
pub mod event;
pub mod free_text;
pub mod high_water_mark;
pub mod import;
pub mod not_ready;
pub mod parts;
pub mod refusals;
pub mod replica_set;
pub mod store_fault;
pub mod user_ids;
pub mod webhook;
