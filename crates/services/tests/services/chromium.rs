//! Chromium.

use potok_services::Chromium;

#[test]
fn a_page_is_opened_asked_and_waited_for() {
    let chromium = Chromium::start();
    let mut page = chromium.page("data:text/html,<title>one</title><p id=p>hello");
    assert_eq!(page.evaluate("document.title"), "\"one\"");
    assert_eq!(page.evaluate("({ a: [1, 'ü\"'], b: undefined })"), "{\"a\":[1,\"ü\\\"\"]}");
    assert_eq!(page.evaluate("new Promise(done => setTimeout(() => done(7), 1))"), "7");
    assert_eq!(page.evaluate("undefined"), "null");
    page.evaluate("void setTimeout(() => { document.title = 'two' }, 20)");
    page.until("document.title === 'two'");
    // Another tab is another page.
    let mut other = chromium.page("data:text/html,<title>three</title>");
    assert_eq!(other.evaluate("document.title"), "\"three\"");
    assert_eq!(page.evaluate("document.getElementById('p').textContent"), "\"hello\"");
    let large = page.evaluate("'x'.repeat(300000)");
    assert_eq!(large.len(), 300_002);
}
