//! How many connections a hub holds: one more is closed at once, so that those it has are served,
//! and one that says nothing does not keep its place.

use std::future::{Future, Ready, ready};
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

/// Accepts while there is room.
#[derive(Clone)]
pub(super) struct Counting(Arc<Semaphore>);

impl Counting {
    pub(super) fn new(connections_max: usize) -> Self {
        Self(Arc::new(Semaphore::new(connections_max)))
    }
}

impl<S> Accept<TcpStream, S> for Counting {
    type Stream = Counted;
    type Service = S;
    type Future = Ready<io::Result<(Counted, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let Ok(permit) = Arc::clone(&self.0).try_acquire_owned() else {
            tracing::debug!("too many connections; one is closed");
            return ready(Err(io::Error::other("too many connections")));
        };
        // Small answers go out at once, and a peer that is gone is noticed.
        let _ = stream.set_nodelay(true);
        let _ = platform::keep_alive(&stream);
        ready(Ok((Counted { stream, _permit: permit }, service)))
    }
}

/// A connection and its place among those that are held.
pub(super) struct Counted {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counted {
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

/// Accepts as another does, and ends a connection on which nothing is said for too long at first.
#[derive(Clone)]
pub(super) struct Speaking<A> {
    inner: A,
    wait: Duration,
}

impl<A> Speaking<A> {
    pub(super) fn new(inner: A, wait: Duration) -> Self {
        Self { inner, wait }
    }
}

impl<A, S> Accept<TcpStream, S> for Speaking<A>
where
    A: Accept<TcpStream, S>,
    A::Future: Send + 'static,
    A::Stream: Send + 'static,
    A::Service: Send + 'static,
{
    type Stream = Spoken<A::Stream>;
    type Service = A::Service;
    type Future = Pin<Box<dyn Future<Output = io::Result<(Self::Stream, A::Service)>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let (accepting, wait) = (self.inner.accept(stream, service), self.wait);
        Box::pin(async move {
            let (stream, service) = accepting.await?;
            let silence = Some(Box::pin(tokio::time::sleep(wait)));
            Ok((Spoken { stream, silence }, service))
        })
    }
}

/// A connection that has to say something first.
pub(super) struct Spoken<S> {
    stream: S,
    /// Runs until the first byte is here.
    silence: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Spoken<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Spoken<S> {
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
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_says_nothing_loses_its_place_and_one_that_spoke_may_be_silent() {
        let (near, far) = tokio::io::duplex(64);
        let silence = |ms| Some(Box::pin(tokio::time::sleep(Duration::from_millis(ms))));
        let mut silent = Spoken { stream: near, silence: silence(20) };
        let mut buffer = [0u8; 8];
        let ended = silent.read(&mut buffer).await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        drop(far);
        let (near, mut far) = tokio::io::duplex(64);
        let mut spoken = Spoken { stream: near, silence: silence(60_000) };
        tokio::io::AsyncWriteExt::write_all(&mut far, b"G").await.unwrap();
        assert_eq!(spoken.read(&mut buffer).await.unwrap(), 1);
        assert!(spoken.silence.is_none());
    }
}
