//! `wopr a2a card`: shows an agent's card, and the interface that would be used.

use anyhow::Result;
use wopr_wire::a2a::model::{AgentCard, AgentInterface};

use super::place::Place;
use crate::{
    agent::Sought,
    exit::Exit,
    output::{self, Paint, cut, whole},
    render,
};

/// Prints a card and marks the chosen interface. If no interface can be used, prints the card and the reason,
/// and fails.
pub(super) async fn show(place: &Place, is_extended: bool) -> Result<Exit> {
    let agent = match place.card().await? {
        Sought::Agent(agent) => *agent,
        Sought::CardOnly {
            card,
            document,
            failure,
        } => {
            match card {
                Some(card) if !place.format.json => print(&card, None)?,
                // Printed as received, because the card could not be parsed or JSON was requested.
                Some(_) | None => output::json(&document)?,
            }
            return Err(failure.into());
        }
    };
    // The interface chosen from the public card is kept.
    let extended = if is_extended {
        Some(agent.extended_card().await?)
    } else {
        None
    };
    if place.format.json {
        match &extended {
            Some(card) => output::json(card)?,
            None => output::json(agent.document())?,
        }
        return Ok(Exit::Ok);
    }
    let chosen = agent.card().supported_interfaces.get(agent.chosen());
    print(extended.as_ref().unwrap_or(agent.card()), chosen)?;
    Ok(Exit::Ok)
}

fn print(card: &AgentCard, chosen: Option<&AgentInterface>) -> Result<()> {
    let paint = Paint::stdout();
    output::line(format!(
        "{}  {}",
        paint.bold(output::plain(&card.name)),
        paint.dim(output::plain(&card.version))
    ))?;
    output::line(output::plain(&card.description))?;
    output::line("")?;
    let rows: Vec<_> = card
        .supported_interfaces
        .iter()
        .map(|interface| {
            let mark = if Some(interface) == chosen {
                "spoken here"
            } else {
                ""
            };
            vec![
                interface.protocol_binding.clone(),
                interface.protocol_version.clone(),
                mark.to_owned(),
                interface.url.clone(),
            ]
        })
        .collect();
    output::table(
        &[whole("BINDING"), whole("VERSION"), whole(""), whole("URL")],
        &rows,
    )?;
    output::line("")?;
    let rows: Vec<_> = card
        .skills
        .iter()
        .map(|skill| {
            vec![
                skill.id.clone(),
                skill.name.clone(),
                render::short(&skill.description),
            ]
        })
        .collect();
    output::table(&[whole("SKILL"), cut("NAME"), cut("DESCRIPTION")], &rows)
}
