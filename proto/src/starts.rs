//! The columns of `Starts`: name, type, default and length of each, once. The scheduler writes them and the mock worker reads
//! them from this table; a test compares it with penstock.proto.

use bytes::Bytes;

use crate::Starts;

/// The table, in the order of the fields' numbers. A column has an entry for `each` START row; or is `ragged` by another
/// one, which has the numbers of its entries; or is `optional`: one for each row, or absent. Its default is what asks for nothing.
macro_rules! start_columns {
    ($($name:ident: $type:ty $(= $default:expr)?, $kind:ident $(($by:ident))?;)+) => {
        /// Of the START rows of a plan; kept from plan to plan.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct StartColumns {
            $(pub $name: Vec<$type>,)+
        }

        impl StartColumns {
            /// Adds a row that asks for nothing.
            pub fn push_default(&mut self) {
                $(start_columns!(@default $kind self.$name $(, $default)?);)+
            }

            /// The message of all entries since the last one, if there are any. `digest` sees each column.
            pub fn finish(&mut self, mut digest: impl FnMut(&[u8])) -> Option<Starts> {
                if self.seeds.is_empty() {
                    return None;
                }
                Some(Starts { $($name: packed(&mut self.$name, &mut digest),)+ })
            }

            /// Fails for a column that has not as many entries as it should.
            pub fn read(starts: &Starts) -> Result<Self, String> {
                let columns = Self { $($name: numbers(stringify!($name), &starts.$name)?,)+ };
                let rows = columns.seeds.len();
                $(
                    let wanted: usize = start_columns!(@$kind columns, $name, rows $(, $by)?);
                    let entries = columns.$name.len();
                    if entries != wanted {
                        return Err(format!("starts.{} has {entries} entries instead of {wanted}", stringify!($name)));
                    }
                )+
                Ok(columns)
            }

            /// Shows `digest` each column of a message.
            pub fn digest(starts: &Starts, mut digest: impl FnMut(&[u8])) {
                $(digest(&starts.$name);)+
            }
        }

        #[cfg(test)]
        const TABLE: &[(&str, &str, &str, &str)] =
            &[$((stringify!($name), stringify!($type), stringify!($kind), concat!($(stringify!($by))?))),+];
    };
    (@default each $column:expr, $default:expr) => { $column.push($default) };
    (@default $kind:ident $column:expr $(, $default:expr)?) => {};
    (@each $columns:ident, $name:ident, $rows:ident) => { $rows };
    (@optional $columns:ident, $name:ident, $rows:ident) => { if $columns.$name.is_empty() { 0 } else { $rows } };
    (@ragged $columns:ident, $name:ident, $rows:ident, $by:ident) => {
        $columns.$by.iter().map(|&count| count as usize).sum()
    };
}

start_columns! {
    seeds: u64 = 0, each;
    temperatures: f32 = 0.0, each;
    top_ks: u32 = 0, each;
    top_ps: f32 = 1.0, each;
    typical_ps: f32 = 1.0, each;
    min_ps: f32 = 0.0, each;
    repetition_penalties: f32 = 1.0, each;
    frequency_penalties: f32 = 0.0, each;
    presence_penalties: f32 = 0.0, each;
    top_tokens: u32 = 0, each;
    history_counts: u32 = 0, each;
    history_outputs: u32 = 0, each;
    history: u32, ragged(history_counts);
    bias_counts: u32 = 0, each;
    bias_tokens: u32, ragged(bias_counts);
    biases: f32, ragged(bias_counts);
    first_ends: u32 = 0, each;
    end_counts: u32 = 0, each;
    end_tokens: u32, ragged(end_counts);
    watermark_deltas: f32 = 0.0, each;
    watermark_greens: u32 = 0, each;
    encoder_counts: u32 = 0, optional;
    state_sources: u32 = u32::MAX, optional;
    adapters: u32 = 0, optional;
}

fn packed<T: bytemuck::NoUninit>(values: &mut Vec<T>, digest: &mut impl FnMut(&[u8])) -> Bytes {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    digest(bytes);
    let column = Bytes::copy_from_slice(bytes);
    values.clear();
    column
}

/// Copied out, since a received column need not be aligned.
fn numbers<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
    name: &str,
    column: &[u8],
) -> Result<Vec<T>, String> {
    if !column.len().is_multiple_of(size_of::<T>()) {
        return Err(format!("starts.{name} has {} bytes", column.len()));
    }
    Ok(bytemuck::allocation::pod_collect_to_vec(column))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_that_of_the_contract() {
        let contract = include_str!("../penstock.proto");
        let message = contract.split("message Starts {").nth(1).and_then(|rest| rest.split("\n}").next());
        let mut found = Vec::new();
        let mut before = "";
        for line in message.expect("it has the message").lines().map(str::trim) {
            if let Some((name, _)) = line.strip_prefix("bytes ").and_then(|rest| rest.split_once(" = ")) {
                let about = line.split_once("// ").map_or(before, |(_, about)| about);
                let kind = about.strip_prefix('[').and_then(|rest| rest.split_once(']')).expect("its type");
                let by = kind.1.strip_prefix(" ragged by ").unwrap_or_default();
                let by = by.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
                found.push((name, kind.0, by));
            } else if line.starts_with("// [") {
                before = line.trim_start_matches("// ");
            }
        }
        let table: Vec<_> = TABLE.iter().map(|(name, kind, _, by)| (*name, *kind, *by)).collect();
        assert_eq!(table, found);
    }

    #[test]
    fn a_row_that_asks_for_nothing_is_whole() {
        let mut columns = StartColumns::default();
        columns.push_default();
        let row = columns.clone();
        assert_eq!(StartColumns::read(&columns.finish(|_| {}).expect("there is a row")), Ok(row));
    }

    #[test]
    fn a_column_of_another_length_is_refused_by_name() {
        let starts = |change: fn(&mut StartColumns)| {
            let mut columns = StartColumns::default();
            columns.push_default();
            columns.history_counts[0] = 2;
            columns.history.extend([3, 4]);
            change(&mut columns);
            let expected = columns.clone();
            (columns.finish(|_| {}).expect("there is a row"), expected)
        };
        let (good, expected) = starts(|_| {});
        assert_eq!(StartColumns::read(&good), Ok(expected));
        let refused = |change| StartColumns::read(&starts(change).0).expect_err("it is wrong");
        assert!(refused(|columns| columns.top_ps.clear()).starts_with("starts.top_ps"));
        assert!(refused(|columns| columns.history.push(5)).starts_with("starts.history"));
        assert!(
            refused(|columns| columns.encoder_counts.extend([1, 1])).starts_with("starts.encoder_counts")
        );
    }
}
