//! Sections of generated figures within a page that has parts written by hand.

/// Line that ends the generated part of a page.
pub const END: &str = "<!-- end of the figures -->";

/// Replaces the generated part of a page, which lies between the lines `begin` and [`END`], by
/// `intro` and sections, given by name and text. Earlier sections of other names stay.
pub fn merged(page: &str, begin: &str, intro: &str, sections: Vec<(&str, String)>) -> String {
    let (before, rest) = page.split_once(begin).unwrap_or((page, ""));
    let (old, after) = rest.split_once(END).unwrap_or(("", "\n"));
    let mut all: Vec<(&str, String)> = old
        .split("\n### ")
        .skip(1)
        .map(|text| {
            let name = text.lines().next().unwrap_or("");
            (name, format!("\n### {}\n", text.trim_end()))
        })
        .collect();
    for (name, section) in sections {
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, text)) => *text = section,
            None => all.push((name, section)),
        }
    }
    let text: String = all.into_iter().map(|(_, text)| text).collect();
    format!("{before}{begin}\n\n## Figures\n\n{intro}{text}\n{END}{after}")
}
