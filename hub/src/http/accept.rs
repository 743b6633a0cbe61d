//! How many connections a hub holds: one more is closed at once, so that those it has are served,
//! and one that says nothing does not keep its place.

use std::future::{Future, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum_server::accept::Accept;
use barque_bundle::platform;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// Accepts as another does while there is room, and ends a connection on which nothing is said for
/// too long at first.
#[derive(Clone)]
pub(super) struct Limited<A> {
    inner: A,
    places: Arc<Semaphore>,
    wait: Duration,
}

impl<A> Limited<A> {
    pub(super) fn new(inner: A, connections_max: usize, wait: Duration) -> Self {
        Self { inner, places: Arc::new(Semaphore::new(connections_max)), wait }
    }
}

impl<A, S> Accept<TcpStream, S> for Limited<A>
where
    A: Accept<TcpStream, S>,
    A::Future: Send + 'static,
    A::Stream: Send + 'static,
    A::Service: Send + 'static,
{
    type Stream = Held<A::Stream>;
    type Service = A::Service;
    type Future = Pin<Box<dyn Future<Output = io::Result<(Self::Stream, A::Service)>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            tracing::debug!("too many connections; one is closed");
            return Box::pin(ready(Err(io::Error::other("too many connections"))));
        };
        // Small answers go out at once, and a peer that is gone is noticed.
        let _ = stream.set_nodelay(true);
        let _ = platform::keep_alive(&stream);
        let (accepting, wait) = (self.inner.accept(stream, service), self.wait);
        Box::pin(async move {
            let (stream, service) = accepting.await?;
            let silence = Some(Box::pin(tokio::time::sleep(wait)));
            Ok((Held { stream, silence, _place: place }, service))
        })
    }
}

/// A connection and its place among those that are held; it has to say something first.
pub(super) struct Held<S> {
    stream: S,
    /// Runs until the first byte is here.
    silence: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl<S: AsyncRead + Unpin> AsyncRead for Held<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        match (&polled, &mut self.silence) {
            (Poll::Ready(_), silence) => *silence = None,
            (Poll::Pending, Some(silence)) => {
                if silence.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            (Poll::Pending, None) => {}
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Held<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use axum_server::accept::DefaultAcceptor;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_says_nothing_loses_its_place_and_one_that_spoke_may_be_silent() {
        let (near, far) = tokio::io::duplex(64);
        let places = Arc::new(Semaphore::new(1));
        let held = |stream, ms| Held {
            stream,
            silence: Some(Box::pin(tokio::time::sleep(Duration::from_millis(ms)))),
            _place: Arc::clone(&places).try_acquire_owned().unwrap(),
        };
        let mut silent = held(near, 20);
        let mut buffer = [0u8; 8];
        let ended = silent.read(&mut buffer).await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        drop((silent, far));
        let (near, mut far) = tokio::io::duplex(64);
        let mut spoken = held(near, 60_000);
        tokio::io::AsyncWriteExt::write_all(&mut far, b"G").await.unwrap();
        assert_eq!(spoken.read(&mut buffer).await.unwrap(), 1);
        assert!(spoken.silence.is_none());
    }

    #[tokio::test]
    async fn one_connection_too_many_is_closed_and_a_place_that_is_given_back_is_taken() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let limited = Limited::new(DefaultAcceptor::new(), 1, Duration::from_secs(60));
        let come = async || {
            let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            (near, limited.accept(listener.accept().await.unwrap().0, ()).await)
        };
        let (_first, held) = come().await;
        let (mut second, refused) = come().await;
        assert!(held.is_ok() && refused.is_err());
        assert_eq!(second.read(&mut [0u8; 8]).await.unwrap(), 0);
        drop(held);
        assert!(come().await.1.is_ok());
    }
}
