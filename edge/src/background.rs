//! Work that continues after the response.

use std::pin::Pin;

use worker::Context;

/// Keeps `work` running after the response. The runtime's glue is built for one type of future, not for each
/// kind of work: that saves a fiftieth of the Worker's size.
pub fn run(context: &Context, work: impl Future<Output = ()> + 'static) {
    let work: Pin<Box<dyn Future<Output = ()>>> = Box::pin(work);
    context.wait_until(work);
}
