//! The colours of the screen, all in one place.

use super::grid::Style;

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

    /// Without colours: bold, underlined, reversed.
    pub(crate) fn plain() -> Theme {
        Theme {
            title: Style("1"),
            heading: Style(""),
            sorted: Style("4"),
            selected: Style("7"),
            bar: Style(""),
            quiet: Style(""),
            alarm: Style("1"),
        }
    }

    /// With cyan, blue, grey and red.
    fn coloured() -> Theme {
        Theme {
            heading: Style("36"),
            sorted: Style("4;36"),
            bar: Style("34"),
            quiet: Style("90"),
            alarm: Style("1;31"),
            ..Theme::plain()
        }
    }
}
