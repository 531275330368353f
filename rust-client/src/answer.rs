//! A response, as JSON and as its type.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;

/// A response of type `T`. The JSON is kept as received: a newer claimgate may send more members.
#[derive(Debug)]
pub struct Answer<T> {
    /// The JSON as received.
    pub json: Value,
    /// Whether an earlier call with the same key, or the same new campaign, had this result already.
    pub replayed: bool,
    marker: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Answer<T> {
    pub(crate) fn new(json: Value, replayed: bool) -> Self {
        Self { json, replayed, marker: PhantomData }
    }

    /// Parses the response as its type.
    ///
    /// # Errors
    /// [`Error::Unread`] if claimgate's response is in a format that this version does not support.
    pub fn read(&self) -> Result<T, Error> {
        Ok(T::deserialize(&self.json)?)
    }
}
