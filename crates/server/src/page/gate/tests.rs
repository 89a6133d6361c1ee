//! Pages of interrupts, and answers from forms.

use super::*;
use crate::page::conversation::Said;

const NOW: i64 = 1_700_000_000_000;

fn gate(kind: InterruptKind, data: &Value) -> Gate<'_> {
    Gate {
        workflow: "Orders <1>",
        node: "gate",
        kind,
        data: Cow::Borrowed(data),
        is_untrusted: false,
        artifact: None,
        requested_at: Some(Timestamp::from_millis(NOW - 60_000)),
        expires_at: Timestamp::from_millis(NOW + 3 * 3_600_000),
        now: Timestamp::from_millis(NOW),
        votes: Vec::new(),
        own_vote: None,
        exchanges: Vec::new(),
        conversation: Conversation::default(),
        holder: None,
        only_shown: None,
    }
}

fn approval() -> Value {
    json!({ "title": "Pay <b>now</b>?", "actions": ["accept", "reject", "refine", "ask", "edit-accept"] })
}

fn draft(content: Value) -> Artifact {
    Artifact {
        id: "draft-0".to_owned(),
        name: "Draft".to_owned(),
        artifact_type: "note".to_owned(),
        content,
        is_redacted: false,
        is_untrusted: false,
    }
}

fn sent(body: &str) -> Form {
    Form::parse(body.as_bytes()).expect("a form")
}

#[test]
fn page_has_a_button_for_each_offered_action() {
    let data = approval();
    let page = gate(InterruptKind::Approval, &data).page(None).into_string();
    for action in ["accept", "reject", "refine", "ask", "edit-accept"] {
        assert!(
            page.contains(&format!("name=\"action\" value=\"{action}\"")),
            "{action}: {page}"
        );
    }
    let data = json!({ "title": "Go?", "actions": ["accept"] });
    let page = gate(InterruptKind::Approval, &data).page(None).into_string();
    assert_eq!(page.matches("<button").count(), 1);
    assert!(page.contains("Optional."));
}

#[test]
fn untrusted_texts_are_escaped() {
    let hostile = "</textarea><script>alert(1)</script>";
    let data = json!({
        "title": hostile, "description": hostile, "prompt": hostile, "approversList": [hostile],
        "actions": ["accept", "edit-accept", hostile],
    });
    let gate = Gate {
        workflow: hostile,
        artifact: Some(draft(hostile.into())),
        exchanges: vec![hostile.to_owned()],
        ..gate(InterruptKind::Approval, &data)
    };
    let form = sent(&format!("feedback={hostile}&edited={hostile}"));
    let refused = Refused {
        form: &form,
        why: hostile,
    };
    let page = gate.page(Some(refused)).into_string();
    assert!(!page.contains("<script"), "{page}");
    assert!(page.matches("&lt;script&gt;").count() >= 9, "{page}");
    assert_eq!(page.matches("</textarea>").count(), 2, "{page}");
}

#[test]
fn long_questions_of_approvers_are_cut() {
    let data = json!({ "actions": ["accept"] });
    let gate = Gate {
        exchanges: vec!["é".repeat(60_000); 100],
        ..gate(InterruptKind::Approval, &data)
    };
    let page = gate.page(None).into_string();
    assert!(page.len() < 128 << 10, "{}", page.len());
    assert!(page.contains("é…</li>"), "{page}");
}

#[test]
fn page_shows_approvers_and_expiry() {
    let data = json!({ "actions": ["accept"], "requiredApprovals": 3, "approversList": ["ada", "bo"] });
    let gate = Gate {
        votes: vec![ApprovalAction::Accept, ApprovalAction::Reject],
        own_vote: Some(ApprovalAction::Reject),
        holder: Some("ada"),
        ..gate(InterruptKind::Approval, &data)
    };
    let page = gate.page(None).into_string();
    for wanted in [
        "<span class=\"theirs\">ada</span>, <span class=\"theirs\">bo</span>",
        "1 of 3 so far",
        "<dt>Rejections</dt><dd>1 so far</dd>",
        "<dt>Your vote</dt><dd>rejected; another answer replaces it</dd>",
        "<dt>You answer as</dt><dd class=\"theirs\">ada</dd>",
        "2023-11-15 01:13 UTC</time> (in 3 hours)",
        "2023-11-14 22:12 UTC",
    ] {
        assert!(page.contains(wanted), "{wanted}: {page}");
    }
}

#[test]
fn page_shows_every_kind_of_approver() {
    for (field, wanted) in [
        (
            "approverRefs",
            "<dt>Asked</dt><dd><span class=\"theirs\">legal</span>",
        ),
        (
            "approverRoleRefs",
            "<dt>Asked roles</dt><dd><span class=\"theirs\">legal</span>",
        ),
        (
            "approverGroupRefs",
            "<dt>Asked groups</dt><dd><span class=\"theirs\">legal</span>",
        ),
    ] {
        let data = json!({ "actions": ["accept"], field: ["legal"] });
        let page = gate(InterruptKind::Approval, &data).page(None).into_string();
        assert!(page.contains(wanted), "{wanted}: {page}");
        assert!(!page.contains("whoever may answer"), "{page}");
    }
    let page = gate(InterruptKind::Approval, &json!({ "actions": ["accept"] }))
        .page(None)
        .into_string();
    assert!(page.contains("whoever may answer"), "{page}");
}

/// Browsers turn every line ending into CR LF and replace NUL.
#[test]
fn unchanged_text_is_not_an_edit() {
    let mut data = approval();
    data["actions"] = json!(["accept", "edit-accept"]);
    let gate = Gate {
        artifact: Some(draft("50%\r100%\0\r\nend".into())),
        ..gate(InterruptKind::Approval, &data)
    };
    let body = "action=accept&edited=50%25%0D%0A100%25%EF%BF%BD%0D%0Aend";
    assert_eq!(gate.answer(&sent(body)), Ok(json!({ "action": "accept" })));
}

#[test]
fn form_gives_the_same_answer_as_json() {
    let data = approval();
    let gate = Gate {
        artifact: Some(draft("one\ntwo".into())),
        ..gate(InterruptKind::Approval, &data)
    };
    for (body, wanted) in [
        (
            "action=accept&feedback=+&edited=one%0D%0Atwo",
            json!({ "action": "accept" }),
        ),
        (
            "action=accept&feedback=fine",
            json!({ "action": "accept", "feedback": "fine" }),
        ),
        (
            "action=reject&feedback=no",
            json!({ "action": "reject", "feedback": "no" }),
        ),
        (
            "action=refine&feedback=shorter",
            json!({ "action": "refine", "refineFeedback": { "scope": "whole", "text": "shorter" } }),
        ),
        (
            "action=ask&feedback=why",
            json!({ "action": "ask", "question": "why" }),
        ),
        (
            "action=edit-accept&edited=one%0D%0Athree",
            json!({ "action": "edit-accept", "editedArtifactData": "one\nthree" }),
        ),
    ] {
        assert_eq!(gate.answer(&sent(body)), Ok(wanted), "{body}");
    }
    for (body, why) in [
        ("feedback=x", "buttons"),
        ("action=refine", "what should change"),
        ("action=ask&feedback=+", "question"),
        ("action=edit-accept", "missing"),
        ("action=accept&edited=other", "with my edits"),
        ("action=reject&edited=other", "with my edits"),
    ] {
        let refused = gate.answer(&sent(body)).expect_err(body);
        assert!(refused.contains(why), "{body}: {refused}");
    }
}

#[test]
fn json_is_edited_as_json() {
    let data = approval();
    let gate = Gate {
        artifact: Some(draft(json!({ "n": 1 }))),
        ..gate(InterruptKind::Approval, &data)
    };
    let page = gate.page(None).into_string();
    assert!(page.contains("{\n  &quot;n&quot;: 1\n}</textarea>"), "{page}");
    assert_eq!(
        gate.answer(&sent("action=edit-accept&edited={\"n\":2}")),
        Ok(json!({ "action": "edit-accept", "editedArtifactData": { "n": 2 } }))
    );
    let refused = gate.answer(&sent("action=edit-accept&edited={n:2}"));
    assert_eq!(refused, Err("the edited content is not JSON".to_owned()));
}

#[test]
fn large_content_is_not_editable() {
    let data = approval();
    let gate = Gate {
        artifact: Some(draft("x".repeat(100_000).into())),
        ..gate(InterruptKind::Approval, &data)
    };
    let page = gate.page(None).into_string();
    assert!(!page.contains("value=\"edit-accept\"") && page.contains("cannot be edited on this page"));
    assert!(gate.answer(&sent("action=edit-accept&edited=")).is_ok());
}

#[test]
fn clarification_requires_every_answer() {
    let data = json!({ "questions": [
        { "id": "size", "question": "Which size?", "schema": { "enum": ["small", "large"] } },
        { "id": "n", "question": "How many?", "schema": { "type": "integer" } },
    ] });
    let gate = gate(InterruptKind::Clarification, &data);
    assert_eq!(
        gate.answer(&sent("answers[size]=small&answers[n]=3")),
        Ok(json!({ "answers": { "size": "small", "n": 3 } }))
    );
    for (body, why) in [
        ("answers[size]=small", "“How many?” needs an answer"),
        ("answers[size]=small&answers[n]=3&answers[x]=1", "no question 'x'"),
    ] {
        let refused = gate.answer(&sent(body)).expect_err(body);
        assert!(refused.contains(why), "{refused}");
    }
    let page = gate.page(None).into_string();
    assert!(
        page.contains("<h1 class=\"theirs\" dir=\"auto\">2 questions need answers</h1>"),
        "{page}"
    );
}

#[test]
fn other_interrupts_accept_json() {
    let data = json!({ "eventType": "paid", "correlation": {} });
    let gate = gate(InterruptKind::ExternalEvent, &data);
    assert_eq!(gate.answer(&sent("value={\"a\":1}")), Ok(json!({ "a": 1 })));
    assert!(gate.answer(&sent("value=a")).is_err());
    assert!(gate.answer(&sent("value=")).is_err());
    assert!(
        gate.page(None)
            .into_string()
            .contains("Waiting for the event 'paid'")
    );
}

#[test]
fn inspect_link_has_no_form() {
    let data = approval();
    let gate = Gate {
        only_shown: Some("This link only shows the question."),
        ..gate(InterruptKind::Approval, &data)
    };
    let page = gate.page(None).into_string();
    assert!(!page.contains("<form") && page.contains("only shows"), "{page}");
    assert!(
        !page.contains("can answer") && page.contains("can read"),
        "{page}"
    );
}

#[test]
fn untrusted_questions_are_labelled() {
    let data = json!({ "customKind": "remote", "contentTrust": "untrusted" });
    let page = gate(InterruptKind::Custom, &data).page(None).into_string();
    assert!(page.contains("Untrusted content"), "{page}");
    let data = json!({ "title": "Go?", "actions": ["accept"] });
    for is_untrusted in [true, false] {
        let rendered = Gate {
            is_untrusted,
            ..gate(InterruptKind::Approval, &data)
        };
        let page = rendered.page(None).into_string();
        assert_eq!(page.contains("Untrusted content"), is_untrusted, "{page}");
    }
}

#[test]
fn closed_interrupts_have_a_page() {
    let at = Timestamp::from_millis(NOW);
    let text = |closed: Closed| closed.page("w", "gate").into_string();
    assert!(text(Closed::Answered(Some("reject"), at)).contains("It was rejected"));
    assert!(text(Closed::Answered(None, at)).contains("has its answer"));
    assert!(text(Closed::TimedOut).contains("Nobody answered in time"));
    assert!(text(Closed::Withdrawn).contains("withdrawn"));
    assert!(text(Closed::Otherwise).contains("no longer open"));
    assert!(text(Closed::Ended("cancelled")).contains("It is cancelled"));
    for (status, code, wanted) in [
        (StatusCode::NOT_FOUND, "interrupt_not_found", "no such question"),
        (StatusCode::GONE, "interrupt_expired", "expired"),
        (StatusCode::GONE, "interrupt_gone", "cancelled"),
        (StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "busy"),
        (StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "our side"),
        (StatusCode::FORBIDDEN, "forbidden", "&lt;why&gt;"),
    ] {
        let page = refusal(status, code, "<why>").into_string();
        assert!(page.contains(wanted), "{page}");
    }
}

#[test]
fn verdicts_and_turns_are_given_by_buttons() {
    let data = json!({ "agentId": "acme.reader", "decision": { "next": "<b>" } });
    let held = gate(InterruptKind::LowConfidence, &data);
    let page = held.page(None).into_string();
    assert!(
        page.contains("acme.reader") && page.contains("&lt;b&gt;") && !page.contains("<b>"),
        "{page}"
    );
    let form = sent;
    assert_eq!(
        held.answer(&form("action=accept")),
        Ok(json!({ "ratified": true }))
    );
    assert_eq!(
        held.answer(&form("action=reject")),
        Ok(json!({ "rejected": true }))
    );
    assert!(held.answer(&form("value=x")).is_err());
    let data = json!({ "prompt": "What about tea?" });
    let talk = gate(InterruptKind::Conversation, &data);
    assert!(talk.page(None).into_string().contains("What about tea?"));
    assert_eq!(
        talk.answer(&form("action=exchange&value=Green.")),
        Ok(json!({ "operation": "exchange", "content": "Green." }))
    );
    assert_eq!(
        talk.answer(&form("action=close")),
        Ok(json!({ "operation": "close" }))
    );
    assert_eq!(
        talk.answer(&form("action=close&value=Bye.")),
        Ok(json!({ "operation": "close", "content": "Bye." })),
        "the last words are not lost"
    );
    assert!(talk.answer(&form("action=exchange")).is_err());
}

#[test]
fn a_conversation_shows_its_turns() {
    let data = json!({ "prompt": "What about tea?", "maxTurns": 2 });
    let said = |index: u32, content: Value| Said {
        index,
        from: "ada <1>".to_owned(),
        content,
    };
    let said = vec![
        said(1, json!("Green,\n<b>or</b> black?")),
        said(2, json!({ "cups": 2 })),
    ];
    let talk = |said, next| Gate {
        conversation: Conversation { said, next },
        ..gate(InterruptKind::Conversation, &data)
    };
    let page = talk(Vec::new(), 1).page(None).into_string();
    assert!(
        !page.contains("Said so far") && page.contains("value=\"exchange\""),
        "{page}"
    );
    let page = talk(said, 3).page(None).into_string();
    for wanted in [
        "Said so far",
        "ada &lt;1&gt;",
        "Green,\n&lt;b&gt;or&lt;/b&gt; black?",
        "&quot;cups&quot;: 2",
        "all of its 2 turns",
        "value=\"close\"",
    ] {
        assert!(page.contains(wanted), "{wanted}: {page}");
    }
    assert!(
        !page.contains("value=\"exchange\""),
        "a full conversation takes no turn: {page}"
    );
}

#[test]
fn a_conversation_with_an_outcome_ends_on_its_page() {
    let schema = json!({ "type": "object", "required": ["ok"] });
    let data = json!({ "prompt": "Well?", "outcomeSchema": schema });
    let talk = gate(InterruptKind::Conversation, &data);
    let page = talk.page(None).into_string();
    assert!(page.contains("name=\"answers[outcome]\""), "{page}");
    let form = sent;
    let ended = |outcome: Value| Ok(json!({ "operation": "close", "outcome": outcome }));
    assert_eq!(
        talk.answer(&form("action=close&answers[outcome]={\"ok\":true}")),
        ended(json!({ "ok": true }))
    );
    for wrong in ["action=close", "action=close&answers[outcome]=yes"] {
        assert!(talk.answer(&form(wrong)).is_err(), "{wrong}");
    }
    let words = form("action=close&value=Bye.&answers[outcome]=no");
    let refused = Refused {
        form: &words,
        why: "“Outcome” needs JSON",
    };
    let page = talk.page(Some(refused)).into_string();
    assert_eq!(page.matches("Bye.").count(), 1, "{page}");
    assert!(page.contains("\nno</textarea>"), "{page}");

    let data = json!({ "prompt": "Well?", "outcomeSchema": { "type": ["boolean", "null"] } });
    let talk = gate(InterruptKind::Conversation, &data);
    assert_eq!(
        talk.answer(&form("action=close&answers[outcome]=true")),
        ended(json!(true))
    );
    assert_eq!(
        talk.answer(&form("action=close&answers[outcome]=")),
        Ok(json!({ "operation": "close" }))
    );
}
