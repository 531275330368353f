//! claimgate's core: decides claims in Redis, and hands them through an outbox to SQL.
//!
//! `http` takes requests, `gate` makes batches of claims, `ledger` has Redis decide them, `jobs` move what was decided
//! into `archive` and look after campaigns. Each only knows the next.

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
pub mod engine;
pub mod foreign;
pub mod gate;
pub mod http;
pub mod jobs;
pub mod ledger;
pub mod lock;
pub mod metrics;
pub mod notices;
pub mod reconcile;
pub mod recovery;
pub mod serve;
pub mod serving;
pub mod sold_out;
pub mod step;
