//! The colours of the screen, all in one place.

use ratatui::style::{Color, Modifier, Style};

/// How each kind of thing looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    pub(crate) title: Style,
    pub(crate) heading: Style,
    pub(crate) sorted: Style,
    pub(crate) selected: Style,
    pub(crate) bar: Style,
    pub(crate) quiet: Style,
    pub(crate) alarm: Style,
}

impl Theme {
    /// With colours unless `NO_COLOR` is set to something; then only with weight.
    pub(crate) fn of_environment() -> Theme {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if refused { Theme::plain() } else { Theme::coloured() }
    }

    /// Without colours.
    pub(crate) fn plain() -> Theme {
        let style = Style::new();
        Theme {
            title: style.add_modifier(Modifier::BOLD),
            heading: style,
            sorted: style.add_modifier(Modifier::UNDERLINED),
            selected: style.add_modifier(Modifier::REVERSED),
            bar: style,
            quiet: style,
            alarm: style.add_modifier(Modifier::BOLD),
        }
    }

    fn coloured() -> Theme {
        let plain = Theme::plain();
        Theme {
            heading: plain.heading.fg(Color::Cyan),
            sorted: plain.sorted.fg(Color::Cyan),
            bar: plain.bar.fg(Color::Blue),
            quiet: plain.quiet.fg(Color::DarkGray),
            alarm: plain.alarm.fg(Color::Red),
            ..plain
        }
    }
}
