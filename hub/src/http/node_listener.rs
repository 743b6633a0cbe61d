//! The listener for other nodes: its own port, mutual TLS unless it is plain, and Raft's runtime, so
//! that no work of clients holds a heartbeat up.

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Extension;
use axum::middleware::AddExtension;
use axum_server::accept::{Accept, DefaultAcceptor};
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use tokio::net::TcpStream;
use tower::Layer as _;

use super::accept::Limited;
use super::serve::serve;
use super::{Front, HEADER_WAIT};
use crate::client::split_address;
use crate::cluster::door::Certified;
use crate::cluster::{tasks, tls};
use crate::error::Error;
use crate::hub::{AbortOnDrop, Parts};

/// Connections of other nodes held at once: each has two to here, and a few while it starts anew.
const CONNECTIONS_MAX: usize = 256;

/// A bound listener, before anything is served.
pub struct NodeListener {
    tcp: TcpListener,
    tls: Option<RustlsConfig>,
}

impl NodeListener {
    /// Binds where other nodes shall call; none when this hub takes no others.
    pub fn bind(parts: &Parts) -> Result<Option<Self>, Error> {
        let config = &parts.config;
        let Some(listen) = &config.cluster_listen else {
            let _ = parts.address.set(None);
            return Ok(None);
        };
        let unusable = |e: String| {
            Error::Unusable(format!(
                "cannot listen for other nodes on {listen}: {e}; choose another with --cluster-listen"
            ))
        };
        let (host, port) =
            split_address(listen).ok_or_else(|| unusable("give host:port".to_owned()))?;
        let tcp = TcpListener::bind((host, port)).map_err(|e| unusable(e.to_string()))?;
        tcp.set_nonblocking(true).map_err(|e| unusable(e.to_string()))?;
        let port = tcp.local_addr().map_err(|e| unusable(e.to_string()))?.port();
        let address = tasks::advertised(config, Some(port))?;
        tracing::info!(listen, address, tls = !config.cluster_plain, "listening for other nodes");
        let _ = parts.address.set(address);
        let identity = &parts.identity;
        let tls = match config.cluster_plain {
            true => None,
            false => {
                let (root, node) = (&identity.root, &identity.node);
                let own = tls::Credentials::issue(root, node, identity.node_id)?;
                Some(RustlsConfig::from_config(tls::server(&root.public(), &own)?))
            }
        };
        Ok(Some(Self { tcp, tls }))
    }

    /// Serves on Raft's runtime until what this returns is dropped.
    pub fn serve(self, parts: &Arc<Parts>) -> Option<AbortOnDrop> {
        let runtime = parts.node.runtime()?;
        let app = Front::nodes(parts).into_router();
        let serving = async move {
            let (stop, wait) = (std::future::pending(), Duration::ZERO);
            let served = async {
                match self.tls {
                    Some(tls) => {
                        let acceptor = Certifying(RustlsAcceptor::new(tls));
                        let acceptor = Limited::new(acceptor, CONNECTIONS_MAX, HEADER_WAIT);
                        serve(self.tcp, acceptor, app, stop, wait).await
                    }
                    None => {
                        let acceptor = DefaultAcceptor::new();
                        let acceptor = Limited::new(acceptor, CONNECTIONS_MAX, HEADER_WAIT);
                        serve(self.tcp, acceptor, app, stop, wait).await
                    }
                }
            };
            if let Err(e) = served.await {
                tracing::error!(error = %e, "the listener for other nodes failed");
            }
        };
        Some(AbortOnDrop(runtime.spawn(serving).abort_handle()))
    }
}

/// Accepts TLS, and says of each connection which node's certificate it showed.
#[derive(Clone)]
struct Certifying(RustlsAcceptor);

type Accepted<S> = (<RustlsAcceptor as Accept<TcpStream, S>>::Stream, AddExtension<S, Certified>);

impl<S: Send + 'static> Accept<TcpStream, S> for Certifying {
    type Stream = <RustlsAcceptor as Accept<TcpStream, S>>::Stream;
    type Service = AddExtension<S, Certified>;
    type Future = Pin<Box<dyn Future<Output = io::Result<Accepted<S>>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let accepting = self.0.accept(stream, service);
        Box::pin(async move {
            let (stream, service) = accepting.await?;
            let chain = stream.get_ref().1.peer_certificates();
            let node = chain.and_then(|chain| chain.first()).and_then(tls::peer);
            Ok((stream, Extension(Certified(node)).layer(service)))
        })
    }
}
