/* toml_bridge.cpp - toml++ behind a C callback; exceptions end here. */
#define TOML_EXCEPTIONS 1
#include "config/toml_bridge.h"

#include <new>
#include <string>
#include <string_view>
#include <toml++/toml.h>

namespace {

struct walk {
    const char *name;
    rrfp_toml_visit_fn visit;
    void *context;
    rrfp_error *error;
};

const char *type_name(toml::node_type type)
{
    switch (type) {
    case toml::node_type::table:
        return "table";
    case toml::node_type::array:
        return "array";
    case toml::node_type::string:
        return "string";
    case toml::node_type::integer:
        return "integer";
    case toml::node_type::floating_point:
        return "number";
    case toml::node_type::boolean:
        return "boolean";
    case toml::node_type::date:
        return "date";
    case toml::node_type::time:
        return "time";
    case toml::node_type::date_time:
        return "date and time";
    default:
        return "value";
    }
}

/* Keys may hold NULs and control characters; none of ours does. */
rrfp_status check_key(const walk &w, std::string_view key, uint32_t line)
{
    for (char c : key) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
            return rrfp_error_set(w.error, RRFP_ERR_INVALID,
                                  "%.120s:%u: a key holds a control character", w.name, line);
        }
    }
    return RRFP_OK;
}

rrfp_status visit_scalar(const walk &w, const std::string &table, const std::string &key,
                         const toml::node &node, bool in_array, uint32_t index, uint32_t count)
{
    rrfp_toml_value value{};

    value.kind = RRFP_TOML_OTHER;
    value.type_name = type_name(node.type());
    value.line = node.source().begin.line;
    value.in_array = in_array;
    value.array_index = index;
    value.array_count = count;
    if (const auto *integer = node.as_integer()) {
        value.kind = RRFP_TOML_INTEGER;
        value.integer = integer->get();
    } else if (const auto *real = node.as_floating_point()) {
        value.kind = RRFP_TOML_REAL;
        value.real = real->get();
    } else if (const auto *boolean = node.as_boolean()) {
        value.kind = RRFP_TOML_BOOLEAN;
        value.boolean = boolean->get();
    } else if (const auto *string = node.as_string()) {
        value.kind = RRFP_TOML_STRING;
        value.text = string->get().c_str();
        value.text_bytes = string->get().size();
    }
    return w.visit(w.context, table.c_str(), key.c_str(), &value, w.error);
}

rrfp_status visit_value(const walk &w, const std::string &table, const std::string &key,
                        const toml::node &node)
{
    const toml::array *array = node.as_array();

    if (array == nullptr || array->empty()) {
        return visit_scalar(w, table, key, node, array != nullptr, 0, 0);
    }
    if (array->size() > UINT32_MAX) {
        return rrfp_error_set(w.error, RRFP_ERR_INVALID, "%.120s: an array is too long", w.name);
    }
    for (std::size_t i = 0; i < array->size(); i++) {
        rrfp_status status = visit_scalar(w, table, key, *array->get(i), true,
                                          static_cast<uint32_t>(i),
                                          static_cast<uint32_t>(array->size()));
        if (status != RRFP_OK) {
            return status;
        }
    }
    return RRFP_OK;
}

rrfp_status visit_table(const walk &w, const std::string &name, const toml::table &table,
                        bool top)
{
    for (auto &&[raw_key, node] : table) {
        const std::string key(std::string_view{raw_key});
        rrfp_status status = check_key(w, key, node.source().begin.line);

        if (status != RRFP_OK) {
            return status;
        }
        if (const toml::table *inner = node.as_table()) {
            if (!top) {
                return rrfp_error_set(w.error, RRFP_ERR_INVALID,
                                      "%.120s:%u: table '%.60s.%.60s' is too deep; options stand "
                                      "at the top or in one table",
                                      w.name, node.source().begin.line, name.c_str(), key.c_str());
            }
            status = visit_table(w, key, *inner, false);
        } else {
            status = visit_value(w, name, key, node);
        }
        if (status != RRFP_OK) {
            return status;
        }
    }
    return RRFP_OK;
}

} // namespace

rrfp_status rrfp_toml_walk(const char *name, const char *text, size_t text_bytes,
                           rrfp_toml_visit_fn visit, void *context, rrfp_error *error)
{
    const walk w{name, visit, context, error};

    try {
        const toml::table document = toml::parse(std::string_view(text, text_bytes));

        return visit_table(w, std::string(), document, true);
    } catch (const toml::parse_error &e) {
        const std::string_view what = e.description();

        return rrfp_error_set(error, RRFP_ERR_INVALID, "%.120s:%u: %.*s", name,
                              e.source().begin.line,
                              static_cast<int>(what.size() > 300 ? 300 : what.size()),
                              what.data());
    } catch (const std::bad_alloc &) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "%.120s: no memory to read it", name);
    } catch (const std::exception &e) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "%.120s: %.300s", name, e.what());
    } catch (...) {
        return rrfp_error_set(error, RRFP_ERR_INTERNAL, "%.120s: the TOML reader failed", name);
    }
}
