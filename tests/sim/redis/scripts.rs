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

/// The interpreter of a thread, and the scripts that it has compiled: all servers of the thread run them in it.
struct Interpreter {
    lua: Lua,
    /// Lua's `pcall`: an error of a script may be a table.
    protected: Function,
    /// Of the server that runs a script.
    keys: Rc<RefCell<Option<SharedKeys>>>,
    compiled: RefCell<BTreeMap<(String, Option<Plant>), Function>>,
}

type SharedKeys = Rc<RefCell<dyn Keys>>;

thread_local! {
    static INTERPRETER: Rc<Interpreter> = Rc::new(Interpreter::new());
}

/// The scripts that a server knows.
pub struct Scripts {
    interpreter: Rc<Interpreter>,
    keys: SharedKeys,
    known: BTreeMap<String, Function>,
    /// A text that is replaced in each script by another, without a change of its hash: a fault that a test plants.
    planted: Option<Plant>,
}

/// What a script says, and what it is to say in its place.
pub type Plant = [&'static str; 2];

impl Interpreter {
    fn new() -> Self {
        let (lua, keys) = (Lua::new(), Rc::default());
        install(&lua, &keys).expect("the library can be installed");
        let protected = lua.globals().raw_get("pcall").expect("the function is there");
        Self { lua, protected, keys, compiled: RefCell::default() }
    }

    /// Compiles a script, which says by `plant` something else.
    fn compile(&self, hash: &str, script: &[u8], plant: Option<Plant>) -> mlua::Result<Function> {
        let name = (hash.to_owned(), plant);
        if let Some(function) = self.compiled.borrow().get(&name) {
            return Ok(function.clone());
        }
        let text = String::from_utf8_lossy(script);
        let text = plant.map_or(text.clone(), |[from, to]| text.replace(from, to).into());
        let function = self.lua.load(&*text).set_name("=user_script").into_function()?;
        self.compiled.borrow_mut().insert(name, function.clone());
        Ok(function)
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

impl Scripts {
    /// The scripts of a server that has these keys.
    pub fn new<K: Keys>(keys: &Rc<RefCell<K>>) -> Self {
        let (interpreter, keys) = (INTERPRETER.with(Rc::clone), Rc::clone(keys) as SharedKeys);
        Self { interpreter, keys, known: BTreeMap::new(), planted: None }
    }

    pub fn plant(&mut self, fault: Plant) {
        self.planted = Some(fault);
    }

    /// Forgets all scripts, as a restart and SCRIPT FLUSH do.
    pub fn flush(&mut self) {
        self.known.clear();
    }

    pub fn hash(script: &[u8]) -> String {
        let script = std::str::from_utf8(script).expect("a script is text");
        redis::Script::new(script).get_hash().to_owned()
    }

    /// Compiles a script, and returns its hash or why it cannot be compiled.
    pub fn load(&mut self, script: &[u8]) -> Result<String, String> {
        let hash = Self::hash(script);
        let function = self.interpreter.compile(&hash, script, self.planted);
        let function = function
            .map_err(|error| format!("ERR Error compiling script (new function): {error}"))?;
        self.known.insert(hash.clone(), function);
        Ok(hash)
    }

    /// Runs a script that was loaded; `None` if it was not.
    pub fn run(&self, hash: &str, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Option<Reply> {
        let function = self.known.get(hash)?;
        *self.interpreter.keys.borrow_mut() = Some(Rc::clone(&self.keys));
        let answer = self.interpreter.call(function, keys, arguments);
        let answer = answer.expect("a value that has a reply");
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
}

fn install(lua: &Lua, keys: &Rc<RefCell<Option<SharedKeys>>>) -> mlua::Result<()> {
    let redis = lua.create_table()?;
    let commands = |raises: bool| {
        let keys = Rc::clone(keys);
        lua.create_function(move |lua, arguments: Variadic<Value>| {
            let command = arguments.iter().map(argument).collect::<mlua::Result<Vec<_>>>()?;
            let keys = keys.borrow();
            let keys = keys.as_ref().expect("a server runs the script");
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
