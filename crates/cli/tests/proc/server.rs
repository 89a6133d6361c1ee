//! An HTTP server on loopback that receives a host's outgoing calls and outlives the host.
//!
//! The test determines its responses, including no response at all. It ends with its handle.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// A request with its complete body.
pub(crate) type Request = http::Request<Bytes>;
pub(crate) type Response = http::Response<Bytes>;

#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    _accepting: JoinSet<()>,
}

impl Server {
    /// Starts a server. If `answer` returns no response, the connection is closed, as if the process had
    /// crashed.
    pub(crate) async fn start<A, F>(answer: A) -> Self
    where
        A: Fn(Request) -> F + Send + Sync + 'static,
        F: Future<Output = Option<Response>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::new(answer)));
        Self {
            address,
            _accepting: accepting,
        }
    }

    /// The base URL, without a final slash.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn accept<A, F>(listener: TcpListener, answer: Arc<A>)
where
    A: Fn(Request) -> F + Send + Sync + 'static,
    F: Future<Output = Option<Response>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(serve(stream, Arc::clone(&answer)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve<A, F>(stream: TcpStream, answer: Arc<A>)
where
    A: Fn(Request) -> F + Send + Sync + 'static,
    F: Future<Output = Option<Response>> + Send + 'static,
{
    let service = service_fn(|request: http::Request<Incoming>| {
        let answer = Arc::clone(&answer);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let answer = answer(Request::from_parts(head, body)).await;
            let answer = answer.ok_or_else(|| io::Error::other("no answer"))?;
            io::Result::Ok(answer.map(Full::<Bytes>::new))
        }
    });
    // Fails if the caller was killed.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

pub(crate) fn respond(status: u16, json: &'static str) -> Response {
    let answer = http::Response::builder().status(status);
    let answer = answer.header("content-type", "application/json");
    answer.body(Bytes::from_static(json.as_bytes())).unwrap()
}

pub(crate) fn header<'r>(request: &'r Request, name: &str) -> Option<&'r str> {
    Some(request.headers().get(name)?.to_str().unwrap())
}
