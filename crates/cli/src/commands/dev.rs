//! `wopr dev`: a host with the examples and a key, for trying things out.

use std::{env, path::PathBuf};

use anyhow::Result;
use clap::Args;
use wopr_core::{PrincipalId, WorkflowId};
use wopr_server::config::ENV_KEY_ID;

use crate::{
    exit::Exit,
    host::{self, HostArgs},
    output::{self, Paint},
    signals::Signals,
};

/// Help texts of flags whose defaults differ from those of `serve`.
const STORE_HELP: &str = "Where runs are kept: sqlite:PATH, memory:, or postgres://… [default: sqlite:./wopr-dev.db] \
                          [env: WOPR_STORE]";
const LOG_HELP: &str = "What is logged: a level, or directives such as info,wopr::access=debug [default: warn] \
                        [env: WOPR_LOG]";

/// Serve the example workflows with a generated key.
///
/// Like `serve`, but registers the examples, prints a key and keeps the database at ./wopr-dev.db unless
/// --store is given. The key changes at every start; set WOPR_API_KEY, or configure a key, to keep it.
#[derive(Debug, Args)]
#[command(
    mut_arg("store", |arg| arg.help(STORE_HELP)),
    mut_arg("log_level", |arg| arg.help(LOG_HELP)),
)]
pub(crate) struct Dev {
    #[command(flatten)]
    host: HostArgs,
}

impl Dev {
    pub(crate) async fn run(self) -> Result<Exit> {
        let mut signals = Signals::catch()?;
        let mut args = self.host;
        let is_given = |variable: &str| env::var_os(variable).is_some_and(|value| !value.is_empty());
        if args.store.is_none() && args.config.is_none() && !is_given("WOPR_STORE") {
            args.store = Some(format!("sqlite:{}", PathBuf::from("./wopr-dev.db").display()));
        }
        if args.log_level.is_none() && args.config.is_none() && !is_given("WOPR_LOG") {
            args.log_level = Some("warn".to_owned());
        }
        let mut config = args.load()?;
        // The key that was printed at one start and exported for the next belongs to the same principal.
        for key in config.auth.keys.iter_mut().filter(|key| key.id == ENV_KEY_ID) {
            key.principal.get_or_insert(PrincipalId::parse("dev")?);
        }
        let given = config
            .auth
            .keys
            .iter()
            .find_map(|key| key.secret.as_ref())
            .map(|secret| secret.expose().to_owned());
        let is_new = given.is_none();
        let key = match given {
            Some(key) => key,
            None => {
                let secret = host::new_secret()?;
                config.auth.keys.push(host::full_key("dev", &secret)?);
                secret
            }
        };
        if config.default_workflow.is_none() {
            config.default_workflow = Some(WorkflowId::parse("campaign-brief")?);
        }
        host::init_logs(&config)?;
        let never = std::future::pending();
        let Some(opened) = host::open_unless(config, &mut signals, never).await? else {
            return Ok(Exit::Ok);
        };
        opened.add_examples().await?;
        opened.announce(Some(&key))?;
        let about_key = if is_new {
            "new at every start; set WOPR_API_KEY to keep one"
        } else {
            "the one you set"
        };
        greet(
            &opened.origin,
            &key,
            about_key,
            &opened.host.config().store.to_string(),
        )?;
        opened.serve(signals, std::future::pending()).await;
        Ok(Exit::Ok)
    }
}

fn greet(origin: &str, key: &str, about_key: &str, store: &str) -> Result<()> {
    let paint = Paint::stderr();
    output::note(format!(
        "
{title}  {origin}
  key    {key}  {about_key}
  store  {store}

{try_it}
  export WOPR_SERVER={origin} WOPR_API_KEY={key}
  wopr run hello --server $WOPR_SERVER --input name=Ada
  wopr a2a stream --workflow campaign-brief 'a spring sale'
  wopr interrupts list
  wopr interrupts show RUN  {page}

{curl}
  curl -s {origin}/.well-known/agent-card.json
  curl -s {origin}/v1/runs -H 'Authorization: Bearer {key}' \\
    -H 'Content-Type: application/json' -d '{{\"workflowId\":\"hello\",\"inputs\":{{\"name\":\"Ada\"}}}}'
  curl -sN {origin}/a2a -H 'Authorization: Bearer {key}' -H 'A2A-Version: 1.0' \\
    -H 'Content-Type: application/json' -d '{body}'

{stop}
",
        body = concat!(
            r#"{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":{"message":{"messageId":"m'$(date +%s)'","#,
            r#""role":"ROLE_USER","parts":[{"text":"a spring sale"}]}}}"#
        ),
        about_key = paint.dim(format!("({about_key})")),
        title = paint.bold("wopr is listening on"),
        try_it = paint.bold("Try it from another terminal:"),
        curl = paint.bold("Or with nothing but curl:"),
        page = paint.dim("(prints the link to its page)"),
        stop = paint.dim("Ctrl-C stops it; what it knows stays in the store."),
    ))
}
