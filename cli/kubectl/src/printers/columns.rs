//! Aligned columns out of tab-separated cells. A column's width is set by the consecutive lines
//! that have it, as Go's tabwriter does it: a line without the cell ends the block.

/// Alignment of tables: cells at least 6 wide, 3 spaces between.
pub const TABLE: Layout = Layout { min_width: 6, padding: 3 };
/// Alignment of `describe`: no minimum, 2 spaces between.
pub const DESCRIBE: Layout = Layout { min_width: 0, padding: 2 };

#[derive(Debug, Clone, Copy)]
pub struct Layout {
    pub min_width: usize,
    pub padding: usize,
}

/// Aligns `text`, whose cells end in tabs. What follows a line's last tab stays as it is.
pub fn align(text: &str, layout: Layout) -> String {
    lay_out(text, layout, None)
}

/// As `align`, with column widths kept from call to call, so that rows of a watch stay in line
/// with those printed before.
pub fn align_remembering(text: &str, layout: Layout, remembered: &mut Vec<usize>) -> String {
    lay_out(text, layout, Some(remembered))
}

fn lay_out(text: &str, layout: Layout, remembered: Option<&mut Vec<usize>>) -> String {
    let ends_with_newline = text.ends_with('\n');
    let lines: Vec<Vec<&str>> =
        text.strip_suffix('\n').unwrap_or(text).split('\n').map(|line| line.split('\t').collect()).collect();
    let mut widths: Vec<Vec<usize>> = lines.iter().map(|cells| vec![0; cells.len() - 1]).collect();
    measure(&lines, 0..lines.len(), 0, layout, &mut widths);
    if let Some(remembered) = remembered {
        remember(&mut widths, remembered);
    }
    let mut aligned = String::with_capacity(text.len() * 2);
    for (position, cells) in lines.iter().enumerate() {
        for (column, cell) in cells.iter().enumerate() {
            aligned.push_str(cell);
            if let Some(width) = widths[position].get(column) {
                aligned.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count())));
            }
        }
        if position + 1 < lines.len() || ends_with_newline {
            aligned.push('\n');
        }
    }
    aligned
}

fn measure(
    lines: &[Vec<&str>],
    range: std::ops::Range<usize>,
    column: usize,
    layout: Layout,
    widths: &mut [Vec<usize>],
) {
    let mut start = range.start;
    while start < range.end {
        if lines[start].len() <= column + 1 {
            start += 1;
            continue;
        }
        let end = (start..range.end).find(|line| lines[*line].len() <= column + 1).unwrap_or(range.end);
        let widest = lines[start..end].iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
        let width = (widest + layout.padding).max(layout.min_width);
        for line in &mut widths[start..end] {
            line[column] = width;
        }
        measure(lines, start..end, column + 1, layout, widths);
        start = end;
    }
}

/// No column gets narrower than it was before, or than it is in another row.
fn remember(widths: &mut [Vec<usize>], remembered: &mut Vec<usize>) {
    for line in widths.iter() {
        for (column, width) in line.iter().enumerate() {
            match remembered.get_mut(column) {
                Some(known) => *known = (*known).max(*width),
                None => remembered.push(*width),
            }
        }
    }
    for line in widths {
        line.iter_mut().zip(remembered.iter()).for_each(|(width, known)| *width = *known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_line_up_and_the_last_one_is_not_padded() {
        assert_eq!(
            align("NAME\tAGE\nweb\t5d\na-long-name\t1s\n", TABLE),
            "NAME          AGE\nweb           5d\na-long-name   1s\n"
        );
        assert_eq!(align("A\tB\n", TABLE), "A     B\n");
    }

    #[test]
    fn a_line_without_the_cell_ends_the_block() {
        assert_eq!(
            align("Name:\tx\nContainers:\nLong name:\ty\n", DESCRIBE),
            "Name:  x\nContainers:\nLong name:  y\n"
        );
    }

    #[test]
    fn later_rows_keep_the_widths() {
        let mut remembered = Vec::new();
        assert_eq!(
            align_remembering("NAME\tREADY\tAGE\nlonger-name\t1/1\t5d\n", TABLE, &mut remembered),
            "NAME          READY   AGE\nlonger-name   1/1     5d\n"
        );
        assert_eq!(align_remembering("web\t0/1\t1s\n", TABLE, &mut remembered), "web           0/1     1s\n");
    }
}
