//! An answer, as it came and as what it is.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;

/// An answer that is a `T`. Its JSON is kept as it came: claimgate may be newer, and say more.
#[derive(Debug)]
pub struct Answer<T> {
    /// What was answered.
    pub json: Value,
    /// Whether the key of the call had been used before: the answer is what that call did.
    pub replayed: bool,
    is: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Answer<T> {
    pub(crate) fn new(json: Value, replayed: bool) -> Self {
        Self { json, replayed, is: PhantomData }
    }

    /// The answer as its type.
    ///
    /// # Errors
    /// [`Error::Unread`] when claimgate answered in a way that this version does not know.
    pub fn read(&self) -> Result<T, Error> {
        Ok(T::deserialize(&self.json)?)
    }
}
