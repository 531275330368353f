//! claimgate's core: decides claims in Redis, and hands them through an outbox to SQL.
//!
//! `http` takes requests, `gate` makes batches of claims, `ledger` has Redis decide them, `outbox` moves what was
//! decided into `archive`. Each only knows the next.

pub mod app;
pub mod archive;
pub mod archived;
pub mod campaign;
pub mod campaigns;
pub mod cli;
pub mod clock;
pub mod config;
pub mod data_dir;
pub mod doctor;
pub mod gate;
pub mod http;
pub mod ledger;
pub mod lock;
pub mod metrics;
pub mod outbox;
pub mod reconcile;
pub mod recovery;
pub mod serve;
pub mod sold_out;
