//! Threads for work that can wait: whoever waits for an answer goes first where cores are few.

use barque_bundle::platform;
use tokio::sync::oneshot;

use crate::error::Error;

/// Runs a function on a thread of its own that gives way to others, and returns what it returns. When
/// the caller goes away, the function still runs to its end.
pub async fn run<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (tell, told) = oneshot::channel();
    let thread = std::thread::Builder::new().name(name.to_owned());
    let spawned = thread.spawn(move || {
        platform::give_way();
        let _ = tell.send(f());
    });
    spawned.map_err(Error::io("cannot start a thread", name))?;
    told.await.unwrap_or_else(|_| Err(Error::Malformed(format!("the thread {name} ended badly"))))
}
