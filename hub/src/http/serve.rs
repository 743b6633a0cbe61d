//! Serves connections with receive buffers of one budget, and ends them in order.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum_server::accept::Accept;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::Service;

use super::HEADER_WAIT;

/// Bytes that all connections together may have sent ahead of what is read, beside the least of each.
const BUFFERS: u32 = 64 * 1024 * 1024;
/// The same of one connection: the first one fills a line of 32 MiB a round trip, hyper's default of
/// 1 MiB starves it.
const WINDOW_MAX: u32 = 32 * 1024 * 1024;
const WINDOW_MIN: u32 = 512 * 1024;
/// Bytes of a frame at the most: a larger one costs fewer wake-ups of both sides.
const FRAME_MAX: u32 = 64 * 1024;
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// The rest after an accept that failed, for want of descriptors as it may be.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// What is left of the budget.
struct Buffers(Mutex<u32>);

/// How far the peer of one connection may be ahead; given back when it is dropped.
struct Window {
    buffers: Arc<Buffers>,
    taken: u32,
}

impl Buffers {
    /// Half of what is left, within limits: many connections get little each, and a few much.
    fn take(self: &Arc<Self>) -> Window {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = (*left / 2).min(WINDOW_MAX);
        *left -= taken;
        Window { buffers: Arc::clone(self), taken }
    }
}

impl Window {
    fn bytes(&self) -> u32 {
        self.taken.max(WINDOW_MIN)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        *self.buffers.0.lock().unwrap_or_else(PoisonError::into_inner) += self.taken;
    }
}

/// Serves what a listener accepts until `stop` ends; requests under way then get `wait` to finish.
/// Connections end with the future.
pub(super) async fn serve<A>(
    tcp: TcpListener,
    acceptor: A,
    app: Router,
    stop: impl Future<Output = ()>,
    wait: Duration,
) -> io::Result<()>
where
    A: Accept<TcpStream, Router> + Clone + Send + Sync + 'static,
    A::Future: Send,
    A::Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A::Service: Service<Request<Incoming>, Response = Response, Error = Infallible>,
    A::Service: Clone + Send + 'static,
    <A::Service as Service<Request<Incoming>>>::Future: Send,
{
    let listener = tokio::net::TcpListener::from_std(tcp)?;
    let buffers = Arc::new(Buffers(Mutex::new(BUFFERS)));
    let (stopping, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let accepting = acceptor.accept(stream, app.clone());
                    let (buffers, stopped) = (Arc::clone(&buffers), stopped.clone());
                    connections.spawn(connection(accepting, buffers, stopped));
                }
                Err(e) => {
                    tracing::warn!(error = %e, "a connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            },
        }
    }
    // From here on new connections are refused and do not hang.
    drop(listener);
    stopping.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(wait, ended).await;
    Ok(())
}

async fn connection<T, S>(
    accepting: impl Future<Output = io::Result<(T, S)>>,
    buffers: Arc<Buffers>,
    mut stopped: watch::Receiver<bool>,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let Ok((stream, service)) = accepting.await else { return };
    // Only now: who has not shown itself takes nothing of the budget.
    let window = buffers.take();
    let builder = builder(window.bytes());
    let serving = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => return told(served),
        _ = stopped.wait_for(|s| *s) => {}
    }
    serving.as_mut().graceful_shutdown();
    told(serving.await);
}

/// A connection that breaks is a matter of the line.
fn told(served: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(e) = served {
        tracing::debug!(error = %e, "a connection ended badly");
    }
}

/// A stream may be as far ahead as `window`, and small requests find room beside one that is.
fn builder(window: u32) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_WAIT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(window)
        .initial_connection_window_size(window + WINDOW_MIN)
        .max_frame_size(FRAME_MAX)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .keep_alive_timeout(KEEP_ALIVE);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_connections_share_a_budget_and_give_it_back() {
        let buffers = Arc::new(Buffers(Mutex::new(BUFFERS)));
        let first = buffers.take();
        assert_eq!(first.bytes(), WINDOW_MAX);
        let more: Vec<Window> = (0..200).map(|_| buffers.take()).collect();
        assert!(more.iter().all(|w| (WINDOW_MIN..=WINDOW_MAX).contains(&w.bytes())));
        assert_eq!(more[199].bytes(), WINDOW_MIN);
        let all: u32 = more.iter().chain([&first]).map(Window::bytes).sum();
        assert!(all <= BUFFERS + 201 * WINDOW_MIN, "{all}");
        drop(more);
        drop(first);
        assert_eq!(*buffers.0.lock().unwrap(), BUFFERS);
    }
}
