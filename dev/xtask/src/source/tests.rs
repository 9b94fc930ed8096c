use super::*;

fn code(text: &str) -> String {
    let source = Source::new("x.rs", text);
    assert_eq!(source.code.len(), source.text.len());
    source.code.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn comments_are_no_code() {
    assert_eq!(code("a // b\nc /* d /* e */ f */ g\n/// h\ni"), "a c g i");
    assert_eq!(code("a /* never closed"), "a");
}

#[test]
fn literals_are_no_code() {
    assert_eq!(
        code(r#"f("a \" b", b"c", 'd', '\'', '\u{1F600}', 'é', '"') + g"#),
        "f( , b , , , , , ) + g"
    );
    assert_eq!(
        code("f(r\"a\\\", r##\"b\"# c\"##, br#\"d\"#) + g"),
        "f( , , b ) + g"
    );
    let lifetimes = code("fn f<'a>(x: &'a str, y: &'_ T) -> &'static str { 'l: loop {} }");
    assert_eq!(
        lifetimes,
        "fn f<'a>(x: &'a str, y: &'_ T) -> &'static str { 'l: loop {} }"
    );
}

#[test]
fn identifiers_that_end_in_r_begin_no_raw_string() {
    assert_eq!(code("for r in r#\"x\"# { var }"), "for r in { var }");
    assert_eq!(code("r#type"), "r#type");
}

#[test]
fn words_are_whole() {
    assert_eq!(
        words("std mystd std_x std::y", "std").collect::<Vec<_>>(),
        [0, 16]
    );
    assert_eq!(words("éstd std", "std").collect::<Vec<_>>(), [6]);
}

#[test]
fn test_items_are_found_to_their_end() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { std::x } }\nfn c() {}\n\
                #[cfg(all(loom, test))] use std::{d, e}; fn f() {}\n\
                #[test]\n#[should_panic]\nfn g(h: [u8; 3]) { i }\nfn j() {}";
    let source = Source::new("x.rs", text);
    let mut outside = String::new();
    for (at, c) in text.char_indices().filter(|&(at, _)| !source.in_test(at)) {
        assert_eq!(text.get(at..at + 1), Some(c.to_string()).as_deref());
        outside.push(c);
    }
    assert_eq!(
        outside.split_whitespace().collect::<Vec<_>>().join(" "),
        "fn a() {} fn c() {} fn f() {} fn j() {}"
    );
}

#[test]
fn what_is_not_only_for_tests_is_not_taken_for_it() {
    for text in [
        "#[cfg(not(test))] fn a() {}",
        "#[cfg(any(test, feature = \"x\"))] fn a() {}",
        "#[tests] fn a() {}",
        "#[cfg(all(any(test, x), y))] fn a() {}",
    ] {
        let source = Source::new("x.rs", text);
        assert!(!source.in_test(text.len() - 1), "{text}");
    }
}

#[test]
fn test_modules_in_other_files_are_named() {
    let source = Source::new(
        "src/a.rs",
        "#[cfg(test)]\nmod tests;\n#[cfg(test)] pub(crate) mod rig;\nmod b;",
    );
    assert_eq!(
        source.test_modules(),
        [Path::new("src/a/tests"), Path::new("src/a/rig")]
    );
    let source = Source::new("src/a/mod.rs", "#[cfg(test)] mod tests;");
    assert_eq!(source.test_modules(), [Path::new("src/a/tests")]);
    let source = Source::new("src/lib.rs", "#[cfg(test)] mod tests;");
    assert_eq!(source.test_modules(), [Path::new("src/tests")]);
}

#[test]
fn a_place_is_file_and_line() {
    let source = Source::new("x.rs", "a\nb\nc");
    assert_eq!(source.place(4), "x.rs:3");
    assert_eq!(source.idents("b").collect::<Vec<_>>(), [2]);
}
