//! Hostile agents that speak gRPC, each on a port of its own, over plain HTTP/2.

use std::future::poll_fn;

use bytes::Bytes;
use h2::{
    RecvStream, SendStream,
    server::{self, SendResponse},
};
use http::{HeaderMap, Request, Response, header};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use wopr_wire::a2a::{
    method::{Operation, Version},
    protobuf,
};

use crate::hostile_agents::{
    Answer::{
        self, EndlessBody, EndlessEvents, EndlessHead, ErrorPage, Garbage, Html, HugeArtifact, ManyArtifacts,
        NoStatus, Nothing, Silence,
    },
    BLOCK, BROKEN, Codes,
    Does::{self, Look, Message, Stream},
    HTML, HUGE, MANY, NONSENSE, TIMED_OUT, artifact,
};

const GRPC: &str = "application/grpc";
/// More than a client has to take.
const HEAD: usize = 1 << 20;

pub(crate) const AGENTS: [(Does, Codes); 20] = [
    (Message(Html), NONSENSE),
    (Message(ErrorPage), BROKEN),
    (Message(Garbage), NONSENSE),
    (Message(Nothing), BROKEN),
    (Message(NoStatus), BROKEN),
    (Message(Silence), TIMED_OUT),
    (Message(EndlessBody), HUGE),
    (Message(EndlessHead), BROKEN),
    (Stream(Html), NONSENSE),
    (Stream(Garbage), NONSENSE),
    (Stream(Nothing), BROKEN),
    (Stream(Silence), TIMED_OUT),
    (Stream(EndlessBody), HUGE),
    (Stream(EndlessEvents), TIMED_OUT),
    // An agent that has a task may yet come to its senses.
    (Look(Garbage), TIMED_OUT),
    (Look(Nothing), TIMED_OUT),
    (Look(Silence), TIMED_OUT),
    (Look(EndlessBody), HUGE),
    (Look(HugeArtifact), HUGE),
    (Look(ManyArtifacts), MANY),
];

/// Serves an agent, and returns its address.
pub(crate) async fn start(serving: &mut JoinSet<()>, does: Does) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(serve(stream, does));
            while connections.try_join_next().is_some() {}
        }
    });
    address
}

/// Serves a connection until its caller has enough.
async fn serve(stream: TcpStream, does: Does) -> Result<(), h2::Error> {
    let mut connection = server::handshake(stream).await?;
    let mut calls = JoinSet::new();
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        calls.spawn(async move {
            // The caller has enough.
            drop(answer(request, respond, does).await);
        });
        while calls.try_join_next().is_some() {}
    }
    Ok(())
}

/// Answers one call.
async fn answer(
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    does: Does,
) -> Result<(), h2::Error> {
    let path = request.uri().path().to_owned();
    let working = json!({ "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_WORKING" } });
    let (operation, document) = match (path.rsplit('/').next().unwrap_or_default(), does) {
        ("SendMessage", Message(answer))
        | ("SendStreamingMessage", Stream(answer))
        | ("GetTask", Look(answer)) => {
            return hostile(answer, respond, does).await;
        }
        ("SendMessage", _) => (Operation::SendMessage, json!({ "task": working })),
        ("GetTask", _) => (Operation::GetTask, working),
        ("CancelTask", _) => {
            let canceled =
                json!({ "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_CANCELED" } });
            (Operation::CancelTask, canceled)
        }
        // UNIMPLEMENTED
        _ => return end(begin(respond, GRPC)?, "12"),
    };
    let mut sending = begin(respond, GRPC)?;
    send(&mut sending, &framed(operation, &document)).await?;
    end(sending, "0")
}

async fn hostile(answer: Answer, mut respond: SendResponse<Bytes>, does: Does) -> Result<(), h2::Error> {
    let looked_at = |artifacts: Value| {
        let status = json!({ "state": "TASK_STATE_COMPLETED" });
        let task = json!({ "id": "t", "contextId": "c", "status": status, "artifacts": artifacts });
        framed(Operation::GetTask, &task)
    };
    match answer {
        Html => {
            let mut sending = begin(respond, "text/html")?;
            send(&mut sending, HTML.as_bytes()).await?;
            sending.send_data(Bytes::new(), true)
        }
        ErrorPage => {
            let response = Response::builder().status(502).body(()).expect("a constant");
            respond
                .send_response(response, false)?
                .send_data(HTML.into(), true)
        }
        Garbage => {
            let mut sending = begin(respond, GRPC)?;
            send(&mut sending, b"\0\0\0\0\x07garbage").await?;
            end(sending, "0")
        }
        Silence => {
            let reset = poll_fn(|context| respond.poll_reset(context)).await?;
            Err(reset.into())
        }
        EndlessBody => {
            let mut sending = begin(respond, GRPC)?;
            send(&mut sending, b"\0\x7f\0\0\0").await?;
            loop {
                send(&mut sending, &[0; BLOCK]).await?;
            }
        }
        EndlessHead => {
            let response = Response::builder()
                .header(header::CONTENT_TYPE, GRPC)
                .header("x-more", "x".repeat(HEAD))
                .body(())
                .expect("a valid header");
            respond.send_response(response, true).map(drop)
        }
        EndlessEvents => {
            let mut sending = begin(respond, GRPC)?;
            let working = json!({ "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_WORKING" } });
            let first = framed(Operation::SendStreamingMessage, &json!({ "task": working }));
            send(&mut sending, &first).await?;
            let update = json!({
                "taskId": "t", "contextId": "c", "append": true, "artifact": artifact("a", &"x".repeat(BLOCK)),
            });
            let more = framed(
                Operation::SendStreamingMessage,
                &json!({ "artifactUpdate": update }),
            );
            loop {
                send(&mut sending, &more).await?;
            }
        }
        HugeArtifact => {
            let mut sending = begin(respond, GRPC)?;
            let huge = artifact("huge", &"x".repeat(50 << 20));
            send(&mut sending, &looked_at(json!([huge]))).await?;
            end(sending, "0")
        }
        ManyArtifacts => {
            let mut sending = begin(respond, GRPC)?;
            let many = (0..10_000).map(|n| artifact(&n.to_string(), "small"));
            send(&mut sending, &looked_at(many.collect())).await?;
            end(sending, "0")
        }
        NoStatus => {
            let mut sending = begin(respond, GRPC)?;
            let working = json!({ "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_WORKING" } });
            let task = framed(Operation::SendMessage, &json!({ "task": working }));
            send(&mut sending, &task).await?;
            sending.send_data(Bytes::new(), true)
        }
        // A call that is dropped is reset.
        Nothing => Ok(()),
        Answer::BrokenJson | Answer::WrongType | Answer::WrongId | Answer::NotHttp | Answer::Comments => {
            unreachable!("{does:?} is of other bindings")
        }
    }
}

fn begin(mut respond: SendResponse<Bytes>, media: &str) -> Result<SendStream<Bytes>, h2::Error> {
    let response = Response::builder().header(header::CONTENT_TYPE, media).body(());
    respond.send_response(response.expect("a valid header"), false)
}

/// Ends a call with a status.
fn end(mut sending: SendStream<Bytes>, status: &'static str) -> Result<(), h2::Error> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.parse().expect("a number"));
    sending.send_trailers(trailers)
}

/// Sends as the caller makes room.
async fn send(sending: &mut SendStream<Bytes>, mut bytes: &[u8]) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        sending.reserve_capacity(bytes.len());
        let room = poll_fn(|context| sending.poll_capacity(context)).await;
        let Some(room) = room else {
            return Err(h2::Reason::CANCEL.into());
        };
        let (now, later) = bytes.split_at(room?.min(bytes.len()));
        sending.send_data(Bytes::copy_from_slice(now), false)?;
        bytes = later;
    }
    Ok(())
}

/// A message of a call.
fn framed(operation: Operation, document: &Value) -> Vec<u8> {
    let response = protobuf::method(Version::V1_0, operation).unwrap().response;
    let message = protobuf::write(response, document.as_object().unwrap()).unwrap();
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend_from_slice(&message);
    framed
}
