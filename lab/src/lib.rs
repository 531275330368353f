//! All known methods against overselling, behind one trait, tested against a real Redis and PostgreSQL.
//!
//! [`manager`] has the trait and the strategies' promises; `store` and `locking` are parts that many
//! strategies share; [`strategies`] has one file per strategy. [`workload`] and [`crash`] test a strategy,
//! [`measure`] runs both, [`judge`] compares the result with the expectation, and [`report`] and [`page`]
//! present it.

// Counts are converted to floating-point figures.
#![allow(clippy::cast_precision_loss)]

pub mod addresses;
pub mod app;
mod attempt;
pub mod backoff;
pub mod crash;
pub mod error;
pub mod judge;
mod locking;
pub mod manager;
pub mod measure;
mod meter;
pub mod page;
mod product;
mod redis;
pub mod report;
pub mod servers;
mod sql;
mod stock_key;
mod stock_row;
mod store;
pub mod strategies;
pub mod workload;
