//! `wopr a2a card`: what an agent says about itself, and how it is spoken to.

use anyhow::Result;

use super::place::Place;
use crate::{
    exit::Exit,
    output::{self, Paint},
    render,
};

/// Shows a card, marked with the interface that is spoken to.
pub(super) async fn show(place: &Place, is_extended: bool) -> Result<Exit> {
    let agent = place.agent().await?;
    // The interface was chosen from the card that everybody sees, and that stays so.
    let extended = if is_extended {
        Some(agent.extended_card().await?)
    } else {
        None
    };
    if place.format.json {
        match &extended {
            Some(card) => output::json(card)?,
            None => output::json(&agent.document)?,
        }
        return Ok(Exit::Ok);
    }
    let paint = Paint::stdout();
    let card = extended.as_ref().unwrap_or(&agent.card);
    output::line(format!(
        "{}  {}",
        paint.bold(output::plain(&card.name)),
        paint.dim(output::plain(&card.version))
    ))?;
    output::line(output::plain(&card.description))?;
    output::line("")?;
    let chosen = agent.card.supported_interfaces.get(agent.chosen);
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
    output::table(&["BINDING", "VERSION", "", "URL"], &rows)?;
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
    output::table(&["SKILL", "NAME", "DESCRIPTION"], &rows)?;
    Ok(Exit::Ok)
}
