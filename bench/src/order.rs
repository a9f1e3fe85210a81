//! An order as the bare loops read it: straight into structs, borrowed from the bytes, nothing
//! checked. And the rows it makes.

use serde::Deserialize;

/// As long as a hash of an order: where potok keeps one, a bare loop writes this, so that both
/// write as many bytes.
pub const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

#[derive(Deserialize)]
pub struct Order<'a> {
    pub order_uid: &'a str,
    pub track_number: &'a str,
    pub entry: &'a str,
    #[serde(borrow)]
    pub delivery: Delivery<'a>,
    #[serde(borrow)]
    pub payment: Payment<'a>,
    #[serde(borrow)]
    pub items: Vec<Item<'a>>,
    pub locale: &'a str,
    pub internal_signature: &'a str,
    pub customer_id: &'a str,
    pub delivery_service: &'a str,
    pub shardkey: &'a str,
    pub sm_id: i64,
    pub date_created: &'a str,
    pub oof_shard: &'a str,
}

#[derive(Deserialize)]
pub struct Delivery<'a> {
    pub name: &'a str,
    pub phone: &'a str,
    pub zip: &'a str,
    pub city: &'a str,
    pub address: &'a str,
    pub region: &'a str,
    pub email: &'a str,
}

#[derive(Deserialize)]
pub struct Payment<'a> {
    pub transaction: &'a str,
    pub request_id: &'a str,
    pub currency: &'a str,
    pub provider: &'a str,
    pub amount: i64,
    pub payment_dt: i64,
    pub bank: &'a str,
    pub delivery_cost: i64,
    pub goods_total: i64,
    pub custom_fee: i64,
}

#[derive(Deserialize)]
pub struct Item<'a> {
    pub chrt_id: i64,
    pub track_number: &'a str,
    pub price: i64,
    pub rid: &'a str,
    pub name: &'a str,
    pub sale: i64,
    pub size: &'a str,
    pub total_price: i64,
    pub nm_id: i64,
    pub brand: &'a str,
    pub status: i64,
}

/// The tables, the one of all others first, and their columns.
pub const TABLES: [(&str, &[&str]); 4] = [
    (
        "orders",
        &[
            "order_uid",
            "track_number",
            "entry",
            "locale",
            "internal_signature",
            "customer_id",
            "delivery_service",
            "shardkey",
            "sm_id",
            "date_created",
            "oof_shard",
            "content_hash",
            "potok_id",
        ],
    ),
    ("deliveries", &["order_uid", "name", "phone", "zip", "city", "address", "region", "email"]),
    (
        "payments",
        &[
            "order_uid",
            "transaction",
            "request_id",
            "currency",
            "provider",
            "amount",
            "payment_dt",
            "bank",
            "delivery_cost",
            "goods_total",
            "custom_fee",
        ],
    ),
    (
        "items",
        &[
            "order_uid",
            "element",
            "chrt_id",
            "track_number",
            "price",
            "rid",
            "name",
            "sale",
            "size",
            "total_price",
            "nm_id",
            "brand",
            "status",
        ],
    ),
];

/// The columns of whole numbers; all others are text.
pub const NUMBERS: [&str; 13] = [
    "amount",
    "chrt_id",
    "custom_fee",
    "delivery_cost",
    "element",
    "goods_total",
    "nm_id",
    "payment_dt",
    "price",
    "sale",
    "sm_id",
    "status",
    "total_price",
];

/// A value of a row.
#[derive(Clone, Copy)]
pub enum Cell<'a> {
    Text(&'a str),
    /// A whole number.
    Number(i64),
}

use Cell::{Number, Text};

impl<'a> Order<'a> {
    /// Hands each row to `row`, with the number of its table.
    pub fn rows(&self, position: &'a str, mut row: impl FnMut(usize, &[Cell<'a>])) {
        let uid = Text(self.order_uid);
        let order = [
            uid,
            Text(self.track_number),
            Text(self.entry),
            Text(self.locale),
            Text(self.internal_signature),
            Text(self.customer_id),
            Text(self.delivery_service),
            Text(self.shardkey),
            Number(self.sm_id),
            Text(self.date_created),
            Text(self.oof_shard),
            Text(NO_HASH),
            Text(position),
        ];
        row(0, &order);
        let d = &self.delivery;
        let texts = [d.name, d.phone, d.zip, d.city, d.address, d.region, d.email].map(Text);
        let [name, phone, zip, city, address, region, email] = texts;
        row(1, &[uid, name, phone, zip, city, address, region, email]);
        let p = &self.payment;
        let payment = [
            uid,
            Text(p.transaction),
            Text(p.request_id),
            Text(p.currency),
            Text(p.provider),
            Number(p.amount),
            Number(p.payment_dt),
            Text(p.bank),
            Number(p.delivery_cost),
            Number(p.goods_total),
            Number(p.custom_fee),
        ];
        row(2, &payment);
        for (element, i) in (0..).zip(&self.items) {
            let item = [
                uid,
                Number(element),
                Number(i.chrt_id),
                Text(i.track_number),
                Number(i.price),
                Text(i.rid),
                Text(i.name),
                Number(i.sale),
                Text(i.size),
                Number(i.total_price),
                Number(i.nm_id),
                Text(i.brand),
                Number(i.status),
            ];
            row(3, &item);
        }
    }
}
