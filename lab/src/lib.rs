//! Every known way to stop overselling, behind one trait, against a real Redis and a real PostgreSQL.
//!
//! [`manager`] is the trait and what a strategy promises; [`strategies`] has one file for each; [`workload`] and
//! [`crash`] put them to the test; [`measure`] runs all that for one of them; [`judge`] says whether it came out as
//! expected; [`report`] and [`page`] tell people.

// Counts become figures for people.
#![allow(clippy::cast_precision_loss)]
// For the binary and the tests of this package alone: an error is a server that failed, and ends the contest.
#![allow(clippy::missing_errors_doc)]

pub mod app;
pub mod backoff;
pub mod crash;
pub mod judge;
pub mod manager;
pub mod measure;
pub mod meter;
pub mod page;
pub mod redis;
pub mod report;
pub mod servers;
pub mod sql;
pub mod stock_key;
pub mod stock_row;
pub mod strategies;
pub mod workload;
