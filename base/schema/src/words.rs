//! Values as upstream's messages print them.

/// As Go's `%v` prints a floating point number.
pub fn float(number: f64) -> String {
    if number == 0.0 || (1e-4..1e21).contains(&number.abs()) {
        return format!("{number}");
    }
    let text = format!("{number:e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_printed_as_go_prints_them() {
        let cases = [
            (5.0, "5"),
            (0.1, "0.1"),
            (1e21, "1e+21"),
            (1e-5, "1e-05"),
            (1.5e300, "1.5e+300"),
            (-2.5, "-2.5"),
            (0.0, "0"),
        ];
        cases.iter().for_each(|(number, text)| assert_eq!(float(*number), *text));
    }
}
