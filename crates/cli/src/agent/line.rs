//! The connection to an interface: its URL, the credential, common headers, and the events of its streams.

use std::pin::Pin;

use anyhow::Result;
use futures_util::Stream;
use reqwest::{
    Method, RequestBuilder, Response,
    header::{ACCEPT, AUTHORIZATION},
};
use url::Url;
use wopr_wire::a2a::{
    method::{Operation, VERSION_HEADER, Version},
    model::StreamResponse,
};

use super::{card::Binding, refusal};
use crate::client::{self, ANSWER, Trust, unreachable_failure};

/// An item of a stream, with its event id if it has one.
pub(crate) type Item = (Option<String>, StreamResponse);

pub(crate) type Items = Pin<Box<dyn Stream<Item = Result<Item>> + Send>>;

#[derive(Debug, Clone)]
pub(super) struct Line {
    http: reqwest::Client,
    endpoint: Url,
    key: Option<String>,
    version: Version,
}

impl Line {
    /// Creates a line to `endpoint`, which was named by a card fetched from `place`.
    pub(super) fn new(
        place: &Url,
        endpoint: Url,
        key: Option<String>,
        binding: Binding,
        version: Version,
        trust: &Trust,
    ) -> Result<Self> {
        Ok(Self {
            // The interface may be on another host than the card, with or without TLS.
            http: match binding {
                Binding::JsonRpc | Binding::HttpJson => client::http(&endpoint, trust)?,
                Binding::Grpc => client::http2(&endpoint, trust)?,
            },
            // The key was given for the host of the card: a card that points elsewhere must not receive it
            // there.
            key: key.filter(|key| !key.is_empty() && client::is_same_place(place, &endpoint)),
            endpoint,
            version,
        })
    }

    pub(super) fn endpoint(&self) -> &str {
        self.endpoint.as_str()
    }

    pub(super) const fn version(&self) -> Version {
        self.version
    }

    pub(super) const fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Returns the interface's URL with a modified path.
    pub(super) fn at(&self, path: impl FnOnce(&str) -> String) -> Url {
        let mut url = self.endpoint.clone();
        let path = path(self.endpoint.path());
        url.set_path(&path);
        url
    }

    pub(super) fn request(&self, operation: Operation, method: Method, url: Url) -> RequestBuilder {
        let mut request = self.http.request(method, url);
        if self.version == Version::V1_0 {
            request = request.header(VERSION_HEADER, self.version.as_str());
        }
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        // No timeout: an agent may take any time to answer a message, and a stream lasts as long as its task.
        if operation.is_streaming() || operation == Operation::SendMessage {
            request
        } else {
            request.timeout(ANSWER)
        }
    }

    pub(super) async fn send(
        &self,
        request: RequestBuilder,
        accept: &str,
        last: Option<&str>,
    ) -> Result<Response> {
        let mut request = request.header(ACCEPT, accept);
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last);
        }
        let response = request.send().await;
        Ok(response.map_err(|error| unreachable_failure(self.endpoint(), &error))?)
    }

    /// Reads a whole response body.
    pub(super) async fn read(&self, response: Response) -> Result<Vec<u8>> {
        let body = client::read(response).await;
        Ok(body.map_err(|error| unreachable_failure(self.endpoint(), &*error))?)
    }

    /// The response is malformed.
    pub(super) fn unreadable(&self, error: &dyn std::fmt::Display) -> anyhow::Error {
        refusal::unreadable(self.endpoint(), error).into()
    }
}
