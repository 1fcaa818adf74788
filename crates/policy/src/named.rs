//! Enums of which each value has a name.

/// An enum without data, its values in their order (`ALL`), a function from each to its name, and if it is asked
/// for one back: one list has all of them.
///
/// ```
/// dwell_policy::named! {
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     enum Side {
///         Left = "left",
///         Right = "right",
///     }
///
///     fn name
///
///     fn from_name
/// }
/// assert_eq!(Side::ALL.map(Side::name), ["left", "right"]);
/// assert_eq!(Side::from_name("right"), Some(Side::Right));
/// ```
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])* $vis:vis enum $enum:ident { $($(#[$of:meta])* $value:ident = $text:literal),* $(,)? }
        $(#[$name_about:meta])* $name_vis:vis fn $name:ident
        $($(#[$from_about:meta])* $from_vis:vis fn from_name)?
    ) => {
        $(#[$about])*
        $vis enum $enum { $($(#[$of])* $value,)* }

        impl $enum {
            /// All of them, in their order.
            #[allow(dead_code)] // Not every enum is listed.
            $name_vis const ALL: [$enum; [$($text),*].len()] = [$($enum::$value),*];

            $(#[$name_about])*
            $name_vis const fn $name(self) -> &'static str {
                match self { $($enum::$value => $text,)* }
            }

            $($(#[$from_about])*
            $from_vis fn from_name(name: &str) -> Option<$enum> {
                $enum::ALL.into_iter().find(|value| value.$name() == name)
            })?
        }
    };
}
