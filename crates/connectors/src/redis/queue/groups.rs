//! The chats that wait in Redis, for people to see, close and drop.
