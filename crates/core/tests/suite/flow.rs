//! How nodes follow each other.

use expect_test::expect;
use serde_json::json;
use wopr_testkit::{Script, Workflow};

#[test]
fn a_run_of_pure_nodes_completes_in_one_decision() {
    let mut script =
        Script::of(&[&Workflow::new("w").noops("a b c").edges("a -> b, b -> c")]).start(json!({}));
    expect![[r#"
        0 run.started
        1 node.started a
        2 node.completed a
        3 node.started b
        4 node.completed b
        5 node.started c
        6 node.completed c
        7 run.completed"#]]
    .assert_eq(&script.news());
}
