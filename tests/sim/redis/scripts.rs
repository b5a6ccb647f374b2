//! Lua as Redis runs it: <https://redis.io/docs/latest/develop/programmability/lua-api/>.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use mlua::{
    Error, Function, IntoLuaMulti as _, Lua, LuaString, MultiValue, Table, Value, Variadic,
};

use super::reply::Reply;

/// What `redis.call` runs.
pub trait Keys: 'static {
    fn run(&mut self, command: &[Vec<u8>]) -> Reply;
}

/// An interpreter, and the scripts that it has compiled.
pub struct Scripts {
    lua: Lua,
    /// Lua's `pcall`: an error of a script may be a table.
    protected: Function,
    compiled: BTreeMap<String, Function>,
    /// A text that is replaced in each script by another, without a change of its hash: a fault that a test plants.
    planted: Option<Plant>,
}

/// What a script says, and what it is to say in its place.
pub type Plant = [&'static str; 2];

impl Scripts {
    /// An interpreter of a server that has these keys.
    pub fn new<K: Keys>(keys: &Rc<RefCell<K>>) -> Self {
        let lua = Lua::new();
        install(&lua, keys).expect("the library can be installed");
        let protected = lua.globals().raw_get("pcall").expect("the function is there");
        Self { lua, protected, compiled: BTreeMap::new(), planted: None }
    }

    pub fn plant(&mut self, fault: Plant) {
        self.planted = Some(fault);
    }

    /// Forgets all scripts, as a restart and SCRIPT FLUSH do.
    pub fn flush(&mut self) {
        self.compiled.clear();
    }

    pub fn hash(script: &[u8]) -> String {
        let script = std::str::from_utf8(script).expect("a script is text");
        redis::Script::new(script).get_hash().to_owned()
    }

    /// Compiles a script, and returns its hash or why it cannot be compiled.
    pub fn load(&mut self, script: &[u8]) -> Result<String, String> {
        let hash = Self::hash(script);
        if !self.compiled.contains_key(&hash) {
            let text = String::from_utf8_lossy(script);
            let text =
                self.planted.map_or(text.clone(), |[from, to]| text.replace(from, to).into());
            let function = self.lua.load(&*text).set_name("=user_script").into_function();
            let function = function
                .map_err(|error| format!("ERR Error compiling script (new function): {error}"))?;
            self.compiled.insert(hash.clone(), function);
        }
        Ok(hash)
    }

    /// Runs a script that was loaded; `None` if it was not.
    pub fn run(&self, hash: &str, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Option<Reply> {
        let function = self.compiled.get(hash)?;
        let answer = self.call(function, keys, arguments).expect("a value that has a reply");
        Some(match answer {
            (true, reply) => reply,
            (false, Reply::Error(text)) => {
                Reply::Error(format!("{text} script: {hash}, on @user_script."))
            }
            (false, Reply::Bulk(text)) => {
                Reply::Error(format!("ERR {}", String::from_utf8_lossy(&text)))
            }
            (false, thrown) => panic!("a script has thrown {thrown:?}"),
        })
    }

    /// Whether the script has come to its end, and what it has returned or thrown.
    fn call(
        &self,
        function: &Function,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
    ) -> mlua::Result<(bool, Reply)> {
        let table = |items: &[Vec<u8>]| {
            let strings = items.iter().map(|item| self.lua.create_string(item));
            self.lua.create_sequence_from(strings.collect::<mlua::Result<Vec<_>>>()?)
        };
        let globals = self.lua.globals();
        globals.raw_set("KEYS", table(keys)?)?;
        globals.raw_set("ARGV", table(arguments)?)?;
        let (has_ended, value) = self.protected.call::<(bool, Value)>(function)?;
        Ok((has_ended, from_lua(value)?))
    }
}

fn install<K: Keys>(lua: &Lua, keys: &Rc<RefCell<K>>) -> mlua::Result<()> {
    let redis = lua.create_table()?;
    let commands = |raises: bool| {
        let keys = Rc::clone(keys);
        lua.create_function(move |lua, arguments: Variadic<Value>| {
            let command = arguments.iter().map(argument).collect::<mlua::Result<Vec<_>>>()?;
            let reply = keys.borrow_mut().run(&command);
            let value = to_lua(lua, &reply)?;
            match reply {
                // A function of Rust can throw no table: the wrapper below does.
                Reply::Error(_) if raises => (true, value).into_lua_multi(lua),
                _ => (false, value).into_lua_multi(lua),
            }
        })
    };
    let wrap: Function = lua
        .load(
            "local run = ... \
             return function(...) \
               local failed, value = run(...) \
               if failed then error(value, 0) end \
               return value \
             end",
        )
        .into_function()?;
    redis.raw_set("call", wrap.call::<Function>(commands(true)?)?)?;
    redis.raw_set("pcall", wrap.call::<Function>(commands(false)?)?)?;
    redis.raw_set("acl_check_cmd", lua.create_function(|_, _: MultiValue| Ok(true))?)?;
    for (name, field) in [("error_reply", "err"), ("status_reply", "ok")] {
        let reply = lua.create_function(move |lua, text: LuaString| {
            let table = lua.create_table()?;
            table.raw_set(field, text)?;
            Ok(table)
        })?;
        redis.raw_set(name, reply)?;
    }
    lua.globals().raw_set("redis", redis)
}

fn argument(value: &Value) -> mlua::Result<Vec<u8>> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(number.to_string().into_bytes()),
        Value::Number(number) => {
            let is_whole = number.fract() == 0.0 && number.abs() < 1e17;
            assert!(is_whole, "the spelling of {number} is not simulated");
            Ok(format!("{number:.0}").into_bytes())
        }
        _ => Err(Error::runtime("Lua redis lib command arguments must be strings or integers")),
    }
}

fn to_lua(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    let named = |name: &str, text: &str| {
        let table = lua.create_table()?;
        table.raw_set(name, text)?;
        Ok(Value::Table(table))
    };
    match reply {
        Reply::Nil | Reply::NilArray => Ok(Value::Boolean(false)),
        Reply::Integer(number) => Ok(Value::Number(*number as f64)),
        Reply::Bulk(text) => Ok(Value::String(lua.create_string(text)?)),
        Reply::Status(text) => named("ok", text),
        Reply::Error(text) => named("err", text),
        Reply::Array(items) => {
            let items = items.iter().map(|item| to_lua(lua, item));
            let items = items.collect::<mlua::Result<Vec<_>>>()?;
            Ok(Value::Table(lua.create_sequence_from(items)?))
        }
    }
}

fn from_lua(value: Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::Integer(number) => Reply::Integer(number),
        Value::Number(number) => Reply::Integer(number.trunc() as i64),
        Value::String(text) => Reply::bulk(&*text.as_bytes()),
        Value::Boolean(true) => Reply::Integer(1),
        Value::Table(table) => match (word(&table, "err")?, word(&table, "ok")?) {
            (Some(text), _) => Reply::Error(text),
            (None, Some(text)) => Reply::Status(text),
            (None, None) => {
                let items = table.sequence_values().map(|item| from_lua(item?));
                Reply::Array(items.collect::<mlua::Result<Vec<_>>>()?)
            }
        },
        _ => Reply::Nil,
    })
}

fn word(table: &Table, name: &str) -> mlua::Result<Option<String>> {
    let value: Option<LuaString> = table.raw_get(name)?;
    Ok(value.map(|text| text.to_string_lossy()))
}
