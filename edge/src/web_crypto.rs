//! The runtime's Web Crypto, used instead of libraries that would make the Worker larger.

use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::{SubtleCrypto, WorkerGlobalScope};
use worker::js_sys::{self, Object, Reflect};

/// Returns the runtime's Web Crypto.
pub(crate) fn subtle() -> Result<SubtleCrypto, JsValue> {
    let global: WorkerGlobalScope = js_sys::global().unchecked_into();
    Ok(global.crypto()?.subtle())
}

/// Returns parameters of an algorithm.
pub(crate) fn object(members: &[(&str, JsValue)]) -> Result<Object, JsValue> {
    let object = Object::new();
    for (name, value) in members {
        Reflect::set(&object, &(*name).into(), value)?;
    }
    Ok(object)
}
