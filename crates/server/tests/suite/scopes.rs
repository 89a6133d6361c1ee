//! Use cases check what their caller may do, whichever face calls them.

use std::time::Duration;

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_app::{
    ActivityAttempt, AddedKey, Caller, Error, Forbidden, NewKey, NodeAnswer, NodeAnswerError, NotRegistered,
    PhaseFilter, RunFilter, Scope, Scopes, SideRows, VisibleRun,
};
use wopr_core::{DrainPolicy, Membership, NodeId, Object, PrincipalId, StepId, TenantId, WorkflowId};

use crate::server::Server;

fn caller(scopes: Scopes) -> Caller {
    Caller {
        key_id: "test".into(),
        tenant: TenantId::parse("default").unwrap(),
        principal: PrincipalId::parse("ada").unwrap(),
        scopes,
        membership: Arc::default(),
    }
}

/// The scope that a caller without scopes lacks.
fn lacks<T>(result: Result<T, Error>) -> Scope {
    match result {
        Err(Error::Forbidden(Forbidden(scope))) => scope,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a use case took a caller without its scope"),
    }
}

#[tokio::test]
async fn use_cases_refuse_callers_without_their_scope() {
    let server = Server::start().await;
    let app = server.host.app();
    let nobody = &caller(Scopes::default());
    let id = app.new_run_id();
    // Found by a caller who may read it, and used by one who may not.
    let all = caller(Scopes::ALL);
    let run = app.find_run(&all, id.as_str(), Scope::RunsRead);
    let run: &VisibleRun = &run.await.unwrap();
    let workflow = WorkflowId::parse("w").unwrap();
    let rows = SideRows::default;
    let attempt = || ActivityAttempt {
        step: StepId {
            node: NodeId::parse("n").unwrap(),
            ordinal: 0,
        },
        attempt: 0,
        lease: None,
    };
    for scope in Scope::ALL {
        assert_eq!(lacks(app.find_run(nobody, id.as_str(), *scope).await), *scope);
    }
    let needed = [
        (
            Scope::RunsCreate,
            lacks(nobody.permit_start().map_err(Error::from)),
        ),
        (
            Scope::RunsRead,
            lacks(app.list_runs(nobody, RunFilter::default(), None, 1).await),
        ),
        (
            Scope::RunsRead,
            lacks(app.list_by_phase(nobody, PhaseFilter::default(), None, 1).await),
        ),
        (
            Scope::RunsRead,
            lacks(
                app.find_ungrouped(nobody, id.clone(), PhaseFilter::default())
                    .await,
            ),
        ),
        (
            Scope::ApprovalsRespond,
            lacks(app.list_waiting_runs(nobody, None, 1).await),
        ),
        (
            Scope::RunsCancel,
            lacks(app.cancel_run(nobody, run, None, rows()).await),
        ),
        (
            Scope::RunsCancel,
            lacks(
                app.pause_run(nobody, run, None, DrainPolicy::Immediate, rows())
                    .await,
            ),
        ),
        (
            Scope::RunsCancel,
            lacks(app.resume_run(nobody, run, None, rows()).await),
        ),
        (
            Scope::RunsCancel,
            lacks(app.set_variables(nobody, run, Object::new()).await),
        ),
        (
            Scope::WebhooksManage,
            lacks(app.list_deliveries(nobody, None, false, None, 1).await),
        ),
        (
            Scope::WebhooksManage,
            lacks(app.retry_deliveries(nobody, &id, None, None).await),
        ),
        (
            Scope::ActivitiesWork,
            lacks(
                app.submit_activity(nobody, run, attempt(), Ok(Object::new()), rows())
                    .await,
            ),
        ),
        (
            Scope::ActivitiesWork,
            lacks(app.heartbeat_activity(nobody, run, attempt(), Value::Null).await),
        ),
        (
            Scope::ActivitiesWork,
            lacks(
                app.lease_activities(nobody, "q".to_owned(), "w".to_owned(), 1, Duration::ZERO)
                    .await,
            ),
        ),
        (Scope::ActivitiesWork, lacks(app.worker_queues(nobody).await)),
        (Scope::RunsRead, lacks(app.messages(nobody, run, 1).await)),
        (Scope::ArtifactsRead, lacks(app.blob(nobody, run, "b").await)),
        (Scope::KeysManage, lacks(app.keys(nobody, None, 1).await)),
        (Scope::KeysManage, lacks(app.revoke_key(nobody, "k").await)),
        (Scope::KeysManage, lacks(add_key(&server, nobody).await)),
        (Scope::ManifestRead, lacks(app.list_workflows(nobody))),
        (
            Scope::ManifestRead,
            lacks(app.read_workflow(nobody, &workflow).await),
        ),
        (
            Scope::WorkflowsWrite,
            lacks(app.remove_workflow(nobody, &workflow).await),
        ),
    ];
    for (n, (wanted, lacked)) in needed.into_iter().enumerate() {
        assert_eq!(wanted, lacked, "use case {n}");
    }
    let registered = app.register_workflow(nobody, json!({})).await;
    assert!(matches!(
        registered,
        Err(NotRegistered::Forbidden(Forbidden(Scope::WorkflowsWrite)))
    ));
    let answer = NodeAnswer {
        node: "gate".to_owned(),
        interrupt: None,
        value: json!({}),
    };
    let answered = app.answer_at_node(nobody, run, answer, rows()).await;
    assert!(matches!(
        answered,
        Err(NodeAnswerError::Failed(Error::Forbidden(Forbidden(
            Scope::ApprovalsRespond
        ))))
    ));
    server.stop().await;
}

async fn add_key(server: &Server, caller: &Caller) -> Result<AddedKey, Error> {
    let new = NewKey {
        id: "k".to_owned(),
        secret_sha256: String::new(),
        principal: caller.principal.clone(),
        scopes: caller.grant(caller.scopes).unwrap(),
        membership: Membership::default(),
    };
    server.host.app().add_key(caller, new).await
}

#[test]
fn callers_grant_only_scopes_they_have() {
    let some = caller(Scopes::one(Scope::RunsRead));
    assert!(some.grant(Scopes::one(Scope::RunsRead)).is_some());
    for more in [Scopes::ALL, Scopes::one(Scope::KeysManage)] {
        assert_eq!(some.grant(more), None);
    }
}
