//! The two stores. Neither store depends on the other, or on the engine.

pub mod redis;
pub mod sql;
