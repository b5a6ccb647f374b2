//! Enums whose values have names, as people write them and as others read them.

/// Defines an enum with a name beside each value, so that no value is without one, and no list of them lacks one.
#[macro_export]
macro_rules! named {
    ($(#[$of_enum:meta])* $vis:vis enum $enum:ident {
        $($(#[$of_value:meta])* $value:ident = $name:expr,)+
    }) => {
        $(#[$of_enum])*
        $vis enum $enum {
            $($(#[$of_value])* $value,)+
        }

        #[allow(dead_code, reason = "not every enum needs all of these")]
        impl $enum {
            /// Every value with its name.
            $vis const NAMED: [(&'static str, Self); [$($name),+].len()] =
                [$(($name, Self::$value)),+];

            /// Every value.
            $vis const ALL: [Self; Self::NAMED.len()] = [$(Self::$value),+];

            /// The name.
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }

            /// The names of all values.
            $vis fn names() -> Vec<&'static str> {
                Self::ALL.map(Self::name).to_vec()
            }

            /// The value with this name.
            $vis fn named(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name)
            }
        }
    };
}
pub use named;
