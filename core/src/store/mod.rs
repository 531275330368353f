//! The two stores. Neither knows the other, nor the engine.

pub mod redis;
pub mod sql;
