// groundup._native: the only file that knows Python. Text and buffers in, lists and flat arrays out.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <initializer_list>
#include <memory>

#include "batch.h"
#include "documents.h"
#include "encoder.h"
#include "files.h"
#include "float_rows.h"
#include "parallel.h"
#include "stream_cut.h"
#include "trainer.h"
#include "unicode.h"

using namespace groundup;

namespace {

// ---- Between the two worlds.

// Thrown when the Python error is set already.
struct PythonError {};

// Runs `body` and turns C++ exceptions into Python's. Returns null after one.
template <class Body>
PyObject* guarded(Body body) {
    try {
        return body();
    } catch (const PythonError&) {
    } catch (const InputError& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

// Lets other Python threads run while it lives.
class GilReleased {
public:
    GilReleased() : state_(PyEval_SaveThread()) {}
    ~GilReleased() { PyEval_RestoreThread(state_); }
    GilReleased(const GilReleased&) = delete;
    GilReleased& operator=(const GilReleased&) = delete;

private:
    PyThreadState* state_;
};

PyObject* checked(PyObject* object) {
    if (!object) throw PythonError();
    return object;
}

// An owned reference.
class Owned {
public:
    explicit Owned(PyObject* object) : object_(checked(object)) {}
    ~Owned() { Py_XDECREF(object_); }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    PyObject* get() const { return object_; }
    PyObject* give() {
        PyObject* object = object_;
        object_ = nullptr;
        return object;
    }

private:
    PyObject* object_;
};

// A view of bytes-like input or of a string's UTF-8, valid while it lives.
//
// Python keeps the UTF-8 form of a string for good once it is asked for it, at the price of a second
// copy. A long string is given that form only when it comes twice in a row; the first time it is
// encoded into a bytes object of our own, which is faster and goes away again.
class Text {
public:
    explicit Text(PyObject* object) {
        if (!PyUnicode_Check(object)) {
            if (PyObject_GetBuffer(object, &view_, PyBUF_SIMPLE) != 0) throw PythonError();
            held_ = true;
            span_ = {static_cast<const Byte*>(view_.buf), static_cast<size_t>(view_.len)};
            return;
        }
        Py_ssize_t size;
        const char* data;
        if (is_worth_a_copy(object)) {
            bytes_ = checked(PyUnicode_AsUTF8String(object));
            char* writable;
            if (PyBytes_AsStringAndSize(bytes_, &writable, &size) != 0) throw PythonError();
            data = writable;
        } else {
            data = PyUnicode_AsUTF8AndSize(object, &size);
            if (!data) throw PythonError();
        }
        span_ = {reinterpret_cast<const Byte*>(data), static_cast<size_t>(size)};
    }
    ~Text() {
        if (held_) PyBuffer_Release(&view_);
        Py_XDECREF(bytes_);
    }
    Text(const Text&) = delete;
    Text& operator=(const Text&) = delete;
    Span span() const { return span_; }

private:
    static constexpr Py_ssize_t kLong = 1 << 18;

    static bool is_worth_a_copy(PyObject* text) {
        static PyObject* last = nullptr;  // only ever compared
        if (PyUnicode_GetLength(text) < kLong) return false;
        PyObject* ascii = PyObject_CallMethod(text, "isascii", nullptr);
        const bool is_ascii = checked(ascii) == Py_True;
        Py_DECREF(ascii);
        if (is_ascii) return false;  // its UTF-8 form is the string itself
        const bool again = last == text;
        last = text;
        return !again;
    }

    Py_buffer view_;
    bool held_ = false;
    PyObject* bytes_ = nullptr;
    Span span_;
};

std::string bytes_of(PyObject* object, const char* what) {
    char* data;
    Py_ssize_t size;
    if (!PyBytes_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be bytes", what);
        throw PythonError();
    }
    if (PyBytes_AsStringAndSize(object, &data, &size) != 0) throw PythonError();
    return std::string(data, static_cast<size_t>(size));
}

// Calls visit(item) for every item of a list or tuple.
template <class Visit>
void each_item(PyObject* sequence, Visit visit) {
    const Py_ssize_t size = PySequence_Size(sequence);
    if (size < 0) throw PythonError();
    for (Py_ssize_t i = 0; i < size; i++) {
        const Owned item(PySequence_GetItem(sequence, i));
        visit(item.get());
    }
}

SpecialTokens special_tokens_from(PyObject* list) {
    std::vector<std::pair<std::string, uint32_t>> tokens;
    each_item(list, [&](PyObject* item) {
        tokens.emplace_back(bytes_of(item, "a special token"), static_cast<uint32_t>(tokens.size()));
    });
    return SpecialTokens(tokens);
}

PyTypeObject* make_type(PyObject* module, PyType_Spec* spec) {
    return reinterpret_cast<PyTypeObject*>(checked(PyType_FromModuleAndSpec(module, spec, nullptr)));
}

template <class Object>
void free_object(Object* self) {
    PyTypeObject* type = Py_TYPE(reinterpret_cast<PyObject*>(self));
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

template <class Object>
Object* new_object(PyTypeObject* type) {
    const auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    return reinterpret_cast<Object*>(checked(alloc(type, 0)));
}

// ---- Buffer: memory of ours that Python can see.

struct BufferObject {
    PyObject_HEAD
    GrowingBlock* block;
    Py_ssize_t size;
};

PyTypeObject* buffer_type = nullptr;

void buffer_dealloc(BufferObject* self) {
    delete self->block;
    free_object(self);
}

int buffer_get(PyObject* object, Py_buffer* view, int flags) {
    BufferObject* self = reinterpret_cast<BufferObject*>(object);
    return PyBuffer_FillInfo(view, object, self->block->data(), self->size, 0, flags);
}

Py_ssize_t buffer_length(BufferObject* self) { return self->size; }

PyType_Slot buffer_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(buffer_dealloc)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(buffer_get)},
    {Py_sq_length, reinterpret_cast<void*>(buffer_length)},
    {Py_tp_doc, const_cast<char*>("Bytes made by the native core, for numpy.frombuffer.")},
    {0, nullptr},
};
PyType_Spec buffer_spec = {"groundup._native.Buffer", sizeof(BufferObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, buffer_slots};

PyObject* to_buffer(GrowingBlock block, size_t size) {
    if (!block.data()) block.resize(1);
    BufferObject* self = new_object<BufferObject>(buffer_type);
    self->block = new GrowingBlock(std::move(block));
    self->size = static_cast<Py_ssize_t>(size);
    return reinterpret_cast<PyObject*>(self);
}

PyObject* to_buffer(IdBuffer& ids) {
    ids.shrink();
    return to_buffer(ids.take(), ids.count * ids.id_bytes());
}

template <class Value>
PyObject* to_buffer(const std::vector<Value>& values) {
    GrowingBlock block;
    block.resize(values.size() * sizeof(Value));
    if (!values.empty()) std::memcpy(block.data(), values.data(), values.size() * sizeof(Value));
    return to_buffer(std::move(block), values.size() * sizeof(Value));
}

// ---- Encoder.

struct EncoderObject {
    PyObject_HEAD
    Encoder* encoder;
    std::vector<PyObject*>* ints;  // one ready int an id, shared by all lists we make
};

PyObject* encoder_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *tokens, *merges, *special_tokens, *pattern_name;
    int whole_words;
    if (!PyArg_ParseTuple(args, "OOOOp", &tokens, &merges, &special_tokens, &pattern_name, &whole_words))
        return nullptr;
    return guarded([&] {
        Vocabulary vocabulary;
        vocabulary.whole_words = whole_words != 0;
        each_item(tokens, [&](PyObject* item) {
            vocabulary.present.push_back(item != Py_None);
            vocabulary.tokens.push_back(item == Py_None ? std::string() : bytes_of(item, "a token"));
        });
        each_item(merges, [&](PyObject* item) {
            const Owned left(PySequence_GetItem(item, 0)), right(PySequence_GetItem(item, 1));
            vocabulary.merges.emplace_back(bytes_of(left.get(), "a merge"), bytes_of(right.get(), "a merge"));
        });
        each_item(special_tokens, [&](PyObject* item) {
            const Owned token(PySequence_GetItem(item, 0)), id(PySequence_GetItem(item, 1));
            const unsigned long number = PyLong_AsUnsignedLong(id.get());
            if (PyErr_Occurred()) throw PythonError();
            vocabulary.special_tokens.emplace_back(bytes_of(token.get(), "a special token"),
                                                   static_cast<uint32_t>(number));
        });
        Pattern pattern = Pattern::kGpt2;
        if (pattern_name != Py_None) {
            const char* name = PyUnicode_AsUTF8AndSize(pattern_name, nullptr);
            if (!name) throw PythonError();
            pattern = pattern_from_name(name);
        }
        std::unique_ptr<Encoder> encoder;
        {
            const GilReleased released;
            encoder = std::make_unique<Encoder>(std::move(vocabulary),
                                                pattern_name == Py_None ? nullptr : &pattern);
        }
        auto ints = std::make_unique<std::vector<PyObject*>>();
        for (size_t id = 0; id < encoder->vocab_size(); id++)
            ints->push_back(checked(PyLong_FromSize_t(id)));
        EncoderObject* self = new_object<EncoderObject>(type);
        self->encoder = encoder.release();
        self->ints = ints.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

void encoder_dealloc(EncoderObject* self) {
    if (self->ints) {
        for (PyObject* number : *self->ints) Py_DECREF(number);
    }
    delete self->ints;
    delete self->encoder;
    free_object(self);
}

template <class Id>
PyObject* list_of(const EncoderObject* self, const IdBuffer& ids) {
    PyObject* list = checked(PyList_New(static_cast<Py_ssize_t>(ids.count)));
    const Id* values = reinterpret_cast<const Id*>(ids.data());
    PyObject* const* ints = self->ints->data();
    for (size_t i = 0; i < ids.count; i++) {
        PyObject* number = ints[values[i]];
        Py_INCREF(number);
        PyList_SetItem(list, static_cast<Py_ssize_t>(i), number);
    }
    return list;
}

PyObject* list_of(const EncoderObject* self, const IdBuffer& ids) {
    return ids.id_bytes() == 2 ? list_of<uint16_t>(self, ids) : list_of<uint32_t>(self, ids);
}

// Letting go of the interpreter costs more than encoding a few words does.
constexpr size_t kFewBytes = 256;

IdBuffer encode_text(const Encoder& encoder, Span text) {
    if (!encoder.has_scanner()) throw InputError("this encoder has no native pattern");
    IdBuffer ids(encoder.id_bytes());
    const auto work = [&] {
        ids.reserve(text.size / 4 + 32);
        encoder.encode(text, ids);
    };
    if (text.size < kFewBytes) {
        work();
    } else {
        const GilReleased released;
        work();
    }
    return ids;
}

PyObject* encoder_encode(EncoderObject* self, PyObject* text) {
    return guarded([&] {
        const Text input(text);
        return list_of(self, encode_text(*self->encoder, input.span()));
    });
}

PyObject* encoder_encode_array(EncoderObject* self, PyObject* text) {
    return guarded([&] {
        const Text input(text);
        IdBuffer ids = encode_text(*self->encoder, input.span());
        return to_buffer(ids);
    });
}

// The ids of a text's beginning that what follows it cannot change.
IdBuffer encode_beginning(const Encoder& encoder, PyObject* text, size_t& used) {
    if (!encoder.has_scanner()) throw InputError("this encoder has no native pattern");
    const Text input(text);
    IdBuffer ids(encoder.id_bytes());
    const auto work = [&] { used = encoder.encode_stream(input.span(), ids); };
    if (input.span().size < kFewBytes) {
        work();
    } else {
        const GilReleased released;
        work();
    }
    return ids;
}

PyObject* encoder_encode_stream(EncoderObject* self, PyObject* text) {
    return guarded([&] {
        size_t used;
        const IdBuffer ids = encode_beginning(*self->encoder, text, used);
        const Owned list(list_of(self, ids));
        return checked(Py_BuildValue("On", list.get(), static_cast<Py_ssize_t>(used)));
    });
}

PyObject* encoder_encode_part(EncoderObject* self, PyObject* text) {
    return guarded([&] {
        size_t used;
        IdBuffer ids = encode_beginning(*self->encoder, text, used);
        const Owned buffer(to_buffer(ids));
        return checked(Py_BuildValue("On", buffer.get(), static_cast<Py_ssize_t>(used)));
    });
}

PyObject* encoder_encode_pieces(EncoderObject* self, PyObject* args) {
    PyObject *text, *ends;
    if (!PyArg_ParseTuple(args, "OO", &text, &ends)) return nullptr;
    return guarded([&] {
        const Text input(text), cuts(ends);
        const uint64_t* values = reinterpret_cast<const uint64_t*>(cuts.span().data);
        const size_t count = cuts.span().size / 8;
        for (size_t i = 0; i < count; i++) {
            if (values[i] <= (i ? values[i - 1] : 0) || values[i] > input.span().size)
                throw InputError("the ends of the pre-tokens do not rise, or leave the text");
        }
        IdBuffer ids(self->encoder->id_bytes());
        {
            const GilReleased released;
            self->encoder->encode_pieces(input.span(), values, count, ids);
        }
        return to_buffer(ids);
    });
}

PyObject* batch_result(EncodeBatch& batch, const Encoder& encoder, size_t num_threads) {
    IdBuffer ids(encoder.id_bytes());
    std::vector<int64_t> offsets;
    {
        const GilReleased released;
        batch.collect(num_threads, ids, offsets);
    }
    const Owned id_buffer(to_buffer(ids)), offset_buffer(to_buffer(offsets));
    return checked(Py_BuildValue("OO", id_buffer.get(), offset_buffer.get()));
}

PyObject* encoder_encode_batch(EncoderObject* self, PyObject* args) {
    PyObject* texts;
    Py_ssize_t num_threads;
    long long end_id;
    if (!PyArg_ParseTuple(args, "OnL", &texts, &num_threads, &end_id)) return nullptr;
    return guarded([&] {
        if (!self->encoder->has_scanner()) throw InputError("this encoder has no native pattern");
        const Py_ssize_t size = PySequence_Size(texts);
        if (size < 0) throw PythonError();
        const size_t count = static_cast<size_t>(size);
        size_t threads = static_cast<size_t>(std::max<Py_ssize_t>(num_threads, 1));
        EncodeBatch batch(*self->encoder, count, threads, end_id < 0 ? kNone : static_cast<uint32_t>(end_id));
        // This thread turns strings into UTF-8, holding the interpreter, while the others encode;
        // then it lets go and joins them.
        std::vector<PyObject*> items;
        std::vector<std::unique_ptr<Text>> inputs;
        items.reserve(count);
        inputs.reserve(count);
        bool failed = false;
        PyThreadState* state = nullptr;
        std::exception_ptr failure;
        try {
            run_threads(threads, [&](size_t thread) {
                if (thread == 0) {
                    for (size_t i = 0; i < count && !failed; i++) {
                        PyObject* item = PySequence_GetItem(texts, static_cast<Py_ssize_t>(i));
                        try {
                            items.push_back(checked(item));
                            inputs.push_back(std::make_unique<Text>(item));
                            batch.feed(inputs.back()->span());
                        } catch (const PythonError&) {
                            failed = true;
                        } catch (...) {
                            batch.finish_feeding(true);
                            throw;
                        }
                    }
                    batch.finish_feeding(failed);
                    state = PyEval_SaveThread();
                }
                batch.work(thread);
            });
        } catch (...) {
            failure = std::current_exception();
        }
        if (state) PyEval_RestoreThread(state);
        PyObject* result = nullptr;
        if (!failed && !failure) {
            result = guarded([&] { return batch_result(batch, *self->encoder, threads); });
            failed = result == nullptr;
        }
        inputs.clear();
        for (PyObject* item : items) Py_DECREF(item);
        if (failure) std::rethrow_exception(failure);
        if (failed) throw PythonError();
        return result;
    });
}

struct CheckedBounds {
    const Bounds* data;
    size_t count;
};

CheckedBounds bounds_of(const Text& buffer, Span text) {
    const CheckedBounds bounds{reinterpret_cast<const Bounds*>(buffer.span().data),
                               buffer.span().size / sizeof(Bounds)};
    for (size_t i = 0; i < bounds.count; i++) {
        const Bounds b = bounds.data[i];
        if (b.begin < 0 || b.end < b.begin || static_cast<size_t>(b.end) > text.size)
            throw InputError("a document's bounds lie outside the text");
    }
    return bounds;
}

PyObject* encoder_encode_documents(EncoderObject* self, PyObject* args) {
    PyObject *data, *bounds_buffer;
    Py_ssize_t num_threads;
    long long end_id;
    if (!PyArg_ParseTuple(args, "OOnL", &data, &bounds_buffer, &num_threads, &end_id)) return nullptr;
    return guarded([&] {
        if (!self->encoder->has_scanner()) throw InputError("this encoder has no native pattern");
        const Text text(data), packed(bounds_buffer);
        const CheckedBounds bounds = bounds_of(packed, text.span());
        const size_t threads = static_cast<size_t>(std::max<Py_ssize_t>(num_threads, 1));
        EncodeBatch batch(*self->encoder, bounds.count, threads,
                          end_id < 0 ? kNone : static_cast<uint32_t>(end_id));
        {
            const GilReleased released;
            for (size_t i = 0; i < bounds.count; i++) {
                const Bounds b = bounds.data[i];
                batch.feed({text.span().data + b.begin, static_cast<size_t>(b.end - b.begin)});
            }
            batch.finish_feeding();
            run_threads(threads, [&](size_t thread) { batch.work(thread); });
        }
        return batch_result(batch, *self->encoder, threads);
    });
}

[[noreturn]] void unknown_id(long long id, size_t vocab_size) {
    PyErr_Format(PyExc_KeyError, "%lld is not an id of this vocabulary of %zu", id, vocab_size);
    throw PythonError();
}

// The ids of a list or array, checked against the vocabulary.
class Ids {
public:
    Ids(const Encoder& encoder, PyObject* object) : encoder_(encoder) {
        Py_buffer view;
        if (PyObject_CheckBuffer(object) && PyObject_GetBuffer(object, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) == 0) {
            const bool ok = read_buffer(view);
            PyBuffer_Release(&view);
            if (bad_) unknown_id(bad_id_, encoder.vocab_size());
            if (ok) return;
        }
        PyErr_Clear();
        each_item(object, [&](PyObject* item) {
            int overflow = 0;
            const long long id = PyLong_AsLongLongAndOverflow(item, &overflow);
            if (id == -1 && !overflow && PyErr_Occurred()) throw PythonError();
            if (overflow) {
                PyErr_Format(PyExc_KeyError, "%R is not an id of this vocabulary of %zu", item,
                             encoder.vocab_size());
                throw PythonError();
            }
            if (id < 0 || !encoder.knows(static_cast<uint64_t>(id))) unknown_id(id, encoder.vocab_size());
            values.push_back(static_cast<uint32_t>(id));
        });
    }

    std::vector<uint32_t> values;

private:
    template <class Value>
    void read(const Py_buffer& view) {
        const Value* from = static_cast<const Value*>(view.buf);
        const size_t count = static_cast<size_t>(view.len) / sizeof(Value);
        values.resize(count);
        const GilReleased released;
        for (size_t i = 0; i < count; i++) {
            const uint64_t id = static_cast<uint64_t>(from[i]);
            if (!encoder_.knows(id)) {
                bad_ = true;
                bad_id_ = static_cast<long long>(from[i]);
                return;
            }
            values[i] = static_cast<uint32_t>(id);
        }
    }
    bool read_buffer(const Py_buffer& view) {
        const char* format = view.format ? view.format : "B";
        while (*format == '@' || *format == '=' || *format == '<') format++;
        const bool is_signed = std::strchr("bhilq", *format) != nullptr;
        if (!*format || !std::strchr("bBhHiIlLqQ", *format) || format[1]) return false;
        switch (view.itemsize * (is_signed ? -1 : 1)) {
            case 1: read<uint8_t>(view); return true;
            case 2: read<uint16_t>(view); return true;
            case 4: read<uint32_t>(view); return true;
            case 8: read<uint64_t>(view); return true;
            case -1: read<int8_t>(view); return true;
            case -2: read<int16_t>(view); return true;
            case -4: read<int32_t>(view); return true;
            case -8: read<int64_t>(view); return true;
            default: return false;
        }
    }

    const Encoder& encoder_;
    bool bad_ = false;
    long long bad_id_ = 0;
};

template <class Make>
PyObject* decode_with(EncoderObject* self, PyObject* object, Make make) {
    return guarded([&] {
        const Ids ids(*self->encoder, object);
        GrowingBlock out;
        size_t size;
        {
            const GilReleased released;
            size = self->encoder->decoded_size(ids.values.data(), ids.values.size());
            out.resize(size + 16);
            self->encoder->decode(ids.values.data(), ids.values.size(), out.data());
        }
        return checked(make(reinterpret_cast<const char*>(out.data()), static_cast<Py_ssize_t>(size)));
    });
}

PyObject* encoder_decode(EncoderObject* self, PyObject* ids) {
    return decode_with(self, ids, [](const char* data, Py_ssize_t size) {
        return PyUnicode_DecodeUTF8(data, size, "replace");
    });
}

PyObject* encoder_decode_bytes(EncoderObject* self, PyObject* ids) {
    return decode_with(self, ids, [](const char* data, Py_ssize_t size) {
        return PyBytes_FromStringAndSize(data, size);
    });
}

PyObject* encoder_id_bytes(EncoderObject* self, void*) {
    return PyLong_FromSize_t(self->encoder->id_bytes());
}

PyMethodDef encoder_methods[] = {
    {"encode", reinterpret_cast<PyCFunction>(encoder_encode), METH_O, "text -> list of ids"},
    {"encode_array", reinterpret_cast<PyCFunction>(encoder_encode_array), METH_O, "text -> Buffer of ids"},
    {"encode_stream", reinterpret_cast<PyCFunction>(encoder_encode_stream), METH_O,
     "UTF-8 so far -> (ids that later text cannot change, bytes they stand for)"},
    {"encode_part", reinterpret_cast<PyCFunction>(encoder_encode_part), METH_O,
     "the same, ids as a Buffer"},
    {"encode_pieces", reinterpret_cast<PyCFunction>(encoder_encode_pieces), METH_VARARGS,
     "(text, uint64 ends of pre-tokens) -> Buffer of ids"},
    {"encode_batch", reinterpret_cast<PyCFunction>(encoder_encode_batch), METH_VARARGS,
     "(texts, num_threads, end_id) -> (Buffer of ids, Buffer of int64 offsets)"},
    {"encode_documents", reinterpret_cast<PyCFunction>(encoder_encode_documents), METH_VARARGS,
     "(data, int64 bounds, num_threads, end_id) -> (Buffer of ids, Buffer of int64 offsets)"},
    {"decode", reinterpret_cast<PyCFunction>(encoder_decode), METH_O, "ids -> text"},
    {"decode_bytes", reinterpret_cast<PyCFunction>(encoder_decode_bytes), METH_O, "ids -> bytes"},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef encoder_getters[] = {
    {"id_bytes", reinterpret_cast<getter>(encoder_id_bytes), nullptr, "2 or 4", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot encoder_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(encoder_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(encoder_dealloc)},
    {Py_tp_methods, encoder_methods},
    {Py_tp_getset, encoder_getters},
    {Py_tp_doc, const_cast<char*>("Encoder(tokens, merges, special_tokens, pattern, whole_words)")},
    {0, nullptr},
};
PyType_Spec encoder_spec = {"groundup._native.Encoder", sizeof(EncoderObject), 0, Py_TPFLAGS_DEFAULT,
                            encoder_slots};

// ---- WordCounter.

struct WordCounterObject {
    PyObject_HEAD
    ScanFunction scan;  // null without a native pattern
    SpecialTokens* special_tokens;
    std::vector<WordCounts>* tables;
};

PyObject* counter_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *pattern_name, *special_tokens;
    Py_ssize_t num_threads, longest = PY_SSIZE_T_MAX;
    if (!PyArg_ParseTuple(args, "OOn|n", &pattern_name, &special_tokens, &num_threads, &longest)) return nullptr;
    return guarded([&] {
        ScanFunction scan = nullptr;
        if (pattern_name != Py_None) {
            const char* name = PyUnicode_AsUTF8AndSize(pattern_name, nullptr);
            if (!name) throw PythonError();
            scan = scanner_for(pattern_from_name(name));
        }
        auto specials = std::make_unique<SpecialTokens>(special_tokens_from(special_tokens));
        auto tables = std::make_unique<std::vector<WordCounts>>();
        for (Py_ssize_t i = 0; i < std::max<Py_ssize_t>(num_threads, 1); i++)
            tables->emplace_back(static_cast<size_t>(std::max<Py_ssize_t>(longest, 1)));
        WordCounterObject* self = new_object<WordCounterObject>(type);
        self->scan = scan;
        self->special_tokens = specials.release();
        self->tables = tables.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

void counter_dealloc(WordCounterObject* self) {
    delete self->special_tokens;
    delete self->tables;
    free_object(self);
}

PyObject* counter_add_text(WordCounterObject* self, PyObject* data) {
    return guarded([&] {
        if (!self->scan) throw InputError("this counter has no native pattern");
        const Text text(data);
        {
            const GilReleased released;
            count_words(text.span(), self->scan, *self->special_tokens, *self->tables);
        }
        Py_RETURN_NONE;
    });
}

PyObject* counter_add_words(WordCounterObject* self, PyObject* args) {
    PyObject *words, *counts;
    if (!PyArg_ParseTuple(args, "OO", &words, &counts)) return nullptr;
    return guarded([&] {
        Py_ssize_t i = 0;
        each_item(words, [&](PyObject* item) {
            const Owned number(PySequence_GetItem(counts, i++));
            const unsigned long long count = PyLong_AsUnsignedLongLong(number.get());
            if (PyErr_Occurred()) throw PythonError();
            const std::string word = bytes_of(item, "a word");
            const Byte* bytes = reinterpret_cast<const Byte*>(word.data());
            (*self->tables)[0].add(bytes, word.size(), count, bytes + word.size());
        });
        Py_RETURN_NONE;
    });
}

// Where `data` may be cut at or after `from` without changing the words.
PyObject* counter_find_cut(WordCounterObject* self, PyObject* args) {
    PyObject* data;
    Py_ssize_t from;
    if (!PyArg_ParseTuple(args, "On", &data, &from)) return nullptr;
    return guarded([&] {
        const Text text(data);
        size_t cut = find_safe_cut(text.span(), static_cast<size_t>(std::max<Py_ssize_t>(from, 0)));
        while (cut < text.span().size && self->special_tokens->crosses(text.span(), cut))
            cut = find_safe_cut(text.span(), cut + 1);
        return checked(PyLong_FromSize_t(cut));
    });
}

// The last place found where text that goes on may be cut; 0 when there is none yet.
PyObject* counter_find_last_cut(WordCounterObject* self, PyObject* data) {
    return guarded([&] {
        if (!self->scan) throw InputError("this counter has no native pattern");
        const Text text(data);
        size_t cut;
        {
            const GilReleased released;
            Bounds last;
            cut = find_stream_cut(text.span(), self->scan, *self->special_tokens, last);
        }
        return checked(PyLong_FromSize_t(cut));
    });
}

PyObject* counter_spill(WordCounterObject* self, PyObject* prefix) {
    return guarded([&] {
        const char* name = PyUnicode_AsUTF8AndSize(prefix, nullptr);
        if (!name) throw PythonError();
        const std::string path = name;
        const Owned paths(PyList_New(0));
        for (size_t i = 0; i < self->tables->size(); i++) {
            const std::string run = path + "." + std::to_string(i);
            {
                const GilReleased released;
                (*self->tables)[i].spill(run);
            }
            const Owned text(PyUnicode_FromStringAndSize(run.data(), static_cast<Py_ssize_t>(run.size())));
            if (PyList_Append(paths.get(), text.get()) != 0) throw PythonError();
        }
        Py_INCREF(paths.get());
        return paths.get();
    });
}

PyObject* counter_items(WordCounterObject* self, PyObject*) {
    return guarded([&] {
        join(*self->tables);
        const Owned dict(PyDict_New());
        self->tables->front().for_each([&](const Byte* word, size_t size, uint64_t number) {
            const Owned key(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(word), static_cast<Py_ssize_t>(size)));
            const Owned count(PyLong_FromUnsignedLongLong(number));
            if (PyDict_SetItem(dict.get(), key.get(), count.get()) != 0) throw PythonError();
        });
        Py_INCREF(dict.get());
        return dict.get();
    });
}

// (num_merges, spilled runs, bytes of memory that may be taken or 0 for any, bytes held besides)
// -> (Buffer of uint32 pairs, bytes of text, symbols left, words).
// The counter is empty afterwards.
PyObject* counter_train(WordCounterObject* self, PyObject* args) {
    Py_ssize_t num_merges;
    PyObject* run_list;
    unsigned long long max_memory, held = 0;
    if (!PyArg_ParseTuple(args, "nOK|K", &num_merges, &run_list, &max_memory, &held)) return nullptr;
    return guarded([&] {
        std::vector<std::string> runs;
        each_item(run_list, [&](PyObject* item) {
            const char* path = PyUnicode_AsUTF8AndSize(item, nullptr);
            if (!path) throw PythonError();
            runs.emplace_back(path);
        });
        const auto check_signals = [] {
            const PyGILState_STATE state = PyGILState_Ensure();
            const bool ok = PyErr_CheckSignals() == 0;
            PyGILState_Release(state);
            if (!ok) throw PythonError();
        };
        Training training;
        {
            const GilReleased released;
            std::vector<WordCounts>& tables = *self->tables;
            WordSource words;
            words.forget = [&] {
                for (WordCounts& table : tables) table.clear();
            };
            if (runs.empty()) {
                join(tables);
                words.visit = [&](const VisitWord& visit) { tables[0].for_each(visit); };
            } else {
                words.forget();
                runs = merge_runs(runs);
                words.visit = [&](const VisitWord& visit) { visit_runs(runs, visit); };
            }
            MemoryLimit limit;
            if (max_memory) limit = {max_memory, held};
            training = train(words, static_cast<size_t>(std::max<Py_ssize_t>(num_merges, 0)), limit, check_signals);
        }
        const Owned merges(to_buffer(training.merges));
        return checked(Py_BuildValue("OKKn", merges.get(), static_cast<unsigned long long>(training.num_bytes),
                                     static_cast<unsigned long long>(training.num_symbols),
                                     static_cast<Py_ssize_t>(training.num_words)));
    });
}

PyObject* counter_memory_bytes(WordCounterObject* self, void*) {
    size_t bytes = 0;
    for (const WordCounts& table : *self->tables) bytes += table.memory_bytes();
    return PyLong_FromSize_t(bytes);
}

PyMethodDef counter_methods[] = {
    {"add_text", reinterpret_cast<PyCFunction>(counter_add_text), METH_O, "count the pre-tokens of UTF-8"},
    {"add_words", reinterpret_cast<PyCFunction>(counter_add_words), METH_VARARGS, "(words, counts)"},
    {"find_cut", reinterpret_cast<PyCFunction>(counter_find_cut), METH_VARARGS,
     "(data, from) -> where data may be cut without changing its pre-tokens"},
    {"find_last_cut", reinterpret_cast<PyCFunction>(counter_find_last_cut), METH_O,
     "text so far -> the last place found where it may be cut, 0 for none yet"},
    {"spill", reinterpret_cast<PyCFunction>(counter_spill), METH_O, "prefix -> paths of sorted runs"},
    {"items", reinterpret_cast<PyCFunction>(counter_items), METH_NOARGS, "dict of words and counts"},
    {"train", reinterpret_cast<PyCFunction>(counter_train), METH_VARARGS,
     "(num_merges, runs, max_memory, held) -> (Buffer of uint32 pairs, bytes of text, symbols left, words)"},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef counter_getters[] = {
    {"memory_bytes", reinterpret_cast<getter>(counter_memory_bytes), nullptr, "of the tables", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot counter_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(counter_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(counter_dealloc)},
    {Py_tp_methods, counter_methods},
    {Py_tp_getset, counter_getters},
    {Py_tp_doc, const_cast<char*>("WordCounter(pattern, special_tokens, num_threads)")},
    {0, nullptr},
};
PyType_Spec counter_spec = {"groundup._native.WordCounter", sizeof(WordCounterObject), 0,
                            Py_TPFLAGS_DEFAULT, counter_slots};

// ---- Functions.

PyObject* py_find_invalid_utf8(PyObject*, PyObject* data) {
    return guarded([&] {
        const Text text(data);
        int64_t at;
        {
            const GilReleased released;
            at = find_invalid_utf8(text.span());
        }
        return checked(PyLong_FromLongLong(at));
    });
}

PyObject* py_find_documents(PyObject*, PyObject* args) {
    PyObject *data, *separators;
    if (!PyArg_ParseTuple(args, "OO", &data, &separators)) return nullptr;
    return guarded([&] {
        const Text text(data);
        const SpecialTokens tokens = special_tokens_from(separators);
        std::vector<Bounds> bounds;
        {
            const GilReleased released;
            bounds = find_documents(text.span(), tokens);
        }
        return to_buffer(bounds);
    });
}

PyObject* py_hash_documents(PyObject*, PyObject* args) {
    PyObject *data, *bounds_buffer;
    if (!PyArg_ParseTuple(args, "OO", &data, &bounds_buffer)) return nullptr;
    return guarded([&] {
        const Text text(data), packed(bounds_buffer);
        const CheckedBounds bounds = bounds_of(packed, text.span());
        std::vector<uint64_t> hashes(bounds.count);
        {
            const GilReleased released;
            for (size_t i = 0; i < bounds.count; i++) {
                const Bounds b = bounds.data[i];
                hashes[i] = hash_document({text.span().data + b.begin, static_cast<size_t>(b.end - b.begin)});
            }
        }
        return to_buffer(hashes);
    });
}

PyObject* py_hash_parts(PyObject*, PyObject* args) {
    PyObject* parts;
    unsigned long long size;
    if (!PyArg_ParseTuple(args, "OK", &parts, &size)) return nullptr;
    return guarded([&] {
        DocumentHash hash(size);
        const Owned iterator(PyObject_GetIter(parts));
        while (PyObject* item = PyIter_Next(iterator.get())) {
            const Owned part(item);
            const Text text(item);
            const GilReleased released;
            hash.add(text.span());
        }
        if (PyErr_Occurred()) throw PythonError();
        return checked(PyLong_FromUnsignedLongLong(hash.value()));
    });
}

PyObject* py_split(PyObject*, PyObject* args) {
    PyObject* data;
    const char* name;
    const char* asked = "";
    if (!PyArg_ParseTuple(args, "Os|s", &data, &name, &asked)) return nullptr;
    return guarded([&] {
        const Text text(data);
        const Vectors vectors = *asked ? vectors_from_name(asked) : vectors_in_use();
        const ScanFunction scan = scanner_for(pattern_from_name(name), vectors);
        std::vector<uint64_t> result;
        {
            const GilReleased released;
            std::vector<uint32_t> ends(kMaxEnds);
            for (size_t at = 0; at < text.span().size;) {
                const size_t count = scan({text.span().data + at, text.span().size - at}, ends.data());
                for (size_t i = 0; i < count; i++) result.push_back(at + ends[i]);
                at += ends[count - 1];
            }
        }
        return to_buffer(result);
    });
}

PyObject* py_vectors(PyObject*, PyObject*) {
    return guarded([&] {
        const Owned names(PyList_New(0));
        for (const Vectors vectors : available_vectors()) {
            const Owned name(PyUnicode_FromString(name_of(vectors)));
            if (PyList_Append(names.get(), name.get()) != 0) throw PythonError();
        }
        return checked(Py_BuildValue("sO", name_of(vectors_in_use()), names.get()));
    });
}

PyObject* py_recover_merges(PyObject*, PyObject* list) {
    return guarded([&] {
        std::vector<std::string> tokens;
        each_item(list, [&](PyObject* item) { tokens.push_back(bytes_of(item, "a token")); });
        std::vector<std::pair<uint32_t, uint32_t>> pairs;
        {
            const GilReleased released;
            pairs = recover_merges(tokens);
        }
        return to_buffer(pairs);
    });
}

PyObject* py_class_of(PyObject*, PyObject* code_point) {
    const unsigned long value = PyLong_AsUnsignedLong(code_point);
    if (PyErr_Occurred()) return nullptr;
    return PyLong_FromLong(value < 0x110000 ? class_of_code_point(static_cast<uint32_t>(value)) : 0);
}

// ---- Rows of float32.

// How many values an array of these dimensions has; what cannot be is no overflow but an error.
size_t product(std::initializer_list<Py_ssize_t> dimensions) {
    Py_ssize_t size = 1;
    for (const Py_ssize_t dimension : dimensions)
        if (dimension < 0 || dimension > INT32_MAX || __builtin_mul_overflow(size, dimension, &size))
            throw InputError("no array has these dimensions");
    return static_cast<size_t>(size);
}

// A contiguous array of an exact number of values, valid while it lives; None is no array.
template <class Value>
class Array {
public:
    Array(PyObject* object, size_t size, bool writable = false, bool optional = false) {
        if (optional && object == Py_None) return;
        if (PyObject_GetBuffer(object, &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) throw PythonError();
        held_ = true;
        if (view_.len % sizeof(Value) || static_cast<size_t>(view_.len) / sizeof(Value) != size)
            throw InputError("an array has " + std::to_string(view_.len) + " bytes, not " + std::to_string(size) +
                             " values of " + std::to_string(sizeof(Value)));
    }
    ~Array() {
        if (held_) PyBuffer_Release(&view_);
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    Value* data() const { return held_ ? static_cast<Value*>(view_.buf) : nullptr; }

private:
    Py_buffer view_;
    bool held_ = false;
};

using FloatArray = Array<float>;

template <class Work>
PyObject* run_without_gil(const Work& work, Py_ssize_t num_threads) {
    {
        const GilReleased released;
        run(work, static_cast<size_t>(std::max<Py_ssize_t>(num_threads, 1)));
    }
    Py_RETURN_NONE;
}

// ---- Files.

PyObject* py_read_ranges(PyObject*, PyObject* args) {
    int file;
    PyObject *offsets, *out;
    Py_ssize_t count, size;
    if (!PyArg_ParseTuple(args, "iOnnO", &file, &offsets, &count, &size, &out)) return nullptr;
    return guarded([&] {
        const Array<int64_t> begins(offsets, product({count}));
        const Array<Byte> target(out, product({count, size}), true);
        RangesRead read;
        {
            const GilReleased released;
            read = read_ranges(file, begins.data(), static_cast<size_t>(count), static_cast<size_t>(size),
                               target.data());
        }
        if (read.error) {
            errno = read.error;
            checked(PyErr_SetFromErrno(PyExc_OSError));
        }
        return checked(PyLong_FromSize_t(read.count));
    });
}

PyObject* py_watch_mapping(PyObject*, PyObject* args) {
    PyObject *mapping, *message;
    if (!PyArg_ParseTuple(args, "OO", &mapping, &message)) return nullptr;
    return guarded([&] {
        const Text mapped(mapping);
        watch_mapping(mapped.span(), bytes_of(message, "a message"));
        Py_RETURN_NONE;
    });
}

PyObject* py_norm_rows(PyObject*, PyObject* args) {
    PyObject *x, *addend, *gain, *total, *out, *scale;
    Py_ssize_t rows, width, num_threads;
    float eps;
    if (!PyArg_ParseTuple(args, "OOOOOOnnfn", &x, &addend, &gain, &total, &out, &scale, &rows, &width, &eps,
                          &num_threads))
        return nullptr;
    return guarded([&] {
        const size_t num_rows = product({rows}), size = product({rows, width});
        const FloatArray x_(x, size), addend_(addend, size, false, true), gain_(gain, product({width}));
        const FloatArray total_(total, size, true, true), out_(out, size, true), scale_(scale, num_rows, true);
        return run_without_gil(NormRows{x_.data(), addend_.data(), gain_.data(), total_.data(), out_.data(),
                                        scale_.data(), num_rows, static_cast<size_t>(width), eps},
                               num_threads);
    });
}

PyObject* py_norm_gradient_rows(PyObject*, PyObject* args) {
    PyObject *d_out, *d_total, *x, *gain, *scale, *d_x, *d_gain;
    Py_ssize_t rows, columns, num_threads;
    if (!PyArg_ParseTuple(args, "OOOOOOOnnn", &d_out, &d_total, &x, &gain, &scale, &d_x, &d_gain, &rows, &columns,
                          &num_threads))
        return nullptr;
    return guarded([&] {
        const size_t num_rows = product({rows}), width = product({columns}), size = product({rows, columns});
        const FloatArray d_out_(d_out, size), d_total_(d_total, size, false, true), x_(x, size), gain_(gain, width);
        const FloatArray scale_(scale, num_rows), d_x_(d_x, size, true), d_gain_(d_gain, width, true);
        return run_without_gil(NormGradientRows{d_out_.data(), d_total_.data(), x_.data(), gain_.data(),
                                                scale_.data(), d_x_.data(), d_gain_.data(), num_rows, width},
                               num_threads);
    });
}

PyObject* py_gate_rows(PyObject*, PyObject* args) {
    PyObject *packed, *out;
    Py_ssize_t rows, columns, num_threads;
    if (!PyArg_ParseTuple(args, "OOnnn", &packed, &out, &rows, &columns, &num_threads)) return nullptr;
    return guarded([&] {
        const size_t num_rows = product({rows}), width = product({columns});
        const FloatArray packed_(packed, product({2, rows, columns})), out_(out, product({rows, columns}), true);
        return run_without_gil(GateRows{packed_.data(), out_.data(), num_rows, width}, num_threads);
    });
}

PyObject* py_gate_gradient_rows(PyObject*, PyObject* args) {
    PyObject *packed, *d_out, *d_packed;
    Py_ssize_t rows, columns, num_threads;
    if (!PyArg_ParseTuple(args, "OOOnnn", &packed, &d_out, &d_packed, &rows, &columns, &num_threads)) return nullptr;
    return guarded([&] {
        const size_t num_rows = product({rows}), width = product({columns}), size = product({2, rows, columns});
        const FloatArray packed_(packed, size), d_out_(d_out, product({rows, columns})), d_packed_(d_packed, size, true);
        return run_without_gil(GateGradientRows{packed_.data(), d_out_.data(), d_packed_.data(), num_rows, width},
                               num_threads);
    });
}

PyObject* py_turn_packed(PyObject*, PyObject* args) {
    PyObject *packed, *cos, *sin, *query, *key;
    Py_ssize_t batch, positions, heads, head_size, num_threads;
    if (!PyArg_ParseTuple(args, "OOOOOnnnnn", &packed, &cos, &sin, &query, &key, &batch, &positions, &heads,
                          &head_size, &num_threads))
        return nullptr;
    return guarded([&] {
        const size_t seq = product({positions}), num_rows = product({batch, positions});
        const size_t num_heads = product({heads}), d_head = product({head_size}), width = product({heads, head_size});
        const size_t size = product({batch, positions, heads, head_size}), turns = product({positions, head_size}) / 2;
        const FloatArray packed_(packed, product({3, batch, positions, heads, head_size}));
        const FloatArray cos_(cos, turns), sin_(sin, turns), query_(query, size, true), key_(key, size, true);
        return run_without_gil(TurnRows{{packed_.data(), packed_.data() + width}, nullptr, cos_.data(), sin_.data(),
                                        {query_.data(), key_.data()}, nullptr,
                                        num_rows, 3 * width, width, seq, num_heads, d_head, false},
                               num_threads);
    });
}

PyObject* py_turn_back(PyObject*, PyObject* args) {
    PyObject *d_query, *d_key, *d_value, *cos, *sin, *d_packed;
    Py_ssize_t batch, positions, heads, head_size, num_threads;
    if (!PyArg_ParseTuple(args, "OOOOOOnnnnn", &d_query, &d_key, &d_value, &cos, &sin, &d_packed, &batch, &positions,
                          &heads, &head_size, &num_threads))
        return nullptr;
    return guarded([&] {
        const size_t seq = product({positions}), num_rows = product({batch, positions});
        const size_t num_heads = product({heads}), d_head = product({head_size}), width = product({heads, head_size});
        const size_t size = product({batch, positions, heads, head_size}), turns = product({positions, head_size}) / 2;
        const FloatArray d_query_(d_query, size), d_key_(d_key, size), d_value_(d_value, size);
        const FloatArray cos_(cos, turns), sin_(sin, turns);
        const FloatArray d_packed_(d_packed, product({3, batch, positions, heads, head_size}), true);
        float* const to = d_packed_.data();
        return run_without_gil(TurnRows{{d_query_.data(), d_key_.data()}, d_value_.data(), cos_.data(), sin_.data(),
                                        {to, to + width}, to + 2 * width,
                                        num_rows, width, 3 * width, seq, num_heads, d_head, true},
                               num_threads);
    });
}

PyObject* py_loss_rows(PyObject*, PyObject* args) {
    PyObject *logits, *targets, *losses;
    Py_ssize_t rows, columns, num_threads;
    float z_loss;
    if (!PyArg_ParseTuple(args, "OOOnnfn", &logits, &targets, &losses, &rows, &columns, &z_loss, &num_threads))
        return nullptr;
    return guarded([&] {
        const size_t num_rows = product({rows}), width = product({columns});
        const FloatArray logits_(logits, product({rows, columns}), true), losses_(losses, num_rows, true);
        const Array<int64_t> targets_(targets, num_rows);
        for (size_t row = 0; row < num_rows; row++)
            if (targets_.data()[row] < 0 || static_cast<size_t>(targets_.data()[row]) >= width)
                throw InputError("target " + std::to_string(targets_.data()[row]) + " is no column of the logits");
        return run_without_gil(LossRows{logits_.data(), losses_.data(), targets_.data(), num_rows, width, z_loss},
                               num_threads);
    });
}

PyMethodDef functions[] = {
    {"norm_rows", py_norm_rows, METH_VARARGS, "root-mean-square norm of rows, of a sum if an addend is given"},
    {"norm_gradient_rows", py_norm_gradient_rows, METH_VARARGS, "the gradient of norm_rows"},
    {"gate_rows", py_gate_rows, METH_VARARGS, "silu(gate) * up"},
    {"gate_gradient_rows", py_gate_gradient_rows, METH_VARARGS, "the gradient of gate_rows"},
    {"turn_packed", py_turn_packed, METH_VARARGS, "queries and keys of packed projections, turned"},
    {"turn_back", py_turn_back, METH_VARARGS, "the gradient of turn_packed, packed"},
    {"loss_rows", py_loss_rows, METH_VARARGS, "cross-entropy, and its gradient in the place of the logits"},
    {"find_invalid_utf8", py_find_invalid_utf8, METH_O, "offset of the first bad byte, or -1"},
    {"find_documents", py_find_documents, METH_VARARGS, "(data, separators) -> Buffer of int64 bounds"},
    {"hash_documents", py_hash_documents, METH_VARARGS, "(data, bounds) -> Buffer of uint64"},
    {"read_ranges", py_read_ranges, METH_VARARGS,
     "(file, int64 offsets, count, size, out) -> how many ranges the file had in full"},
    {"watch_mapping", py_watch_mapping, METH_VARARGS,
     "(mapping, message): a bus error there prints the message and ends the process"},
    {"hash_parts", py_hash_parts, METH_VARARGS,
     "(parts of a document, all but the last multiples of 32 bytes, its size) -> its hash"},
    {"split", py_split, METH_VARARGS, "(text, pattern, vectors in use) -> Buffer of uint64 ends"},
    {"vectors", py_vectors, METH_NOARGS, "the vector instructions in use, and all that there are here"},
    {"recover_merges", py_recover_merges, METH_O, "tokens by rank -> Buffer of int32 pairs, -1 for none"},
    {"class_of", py_class_of, METH_O, "class of a code point, as native/unicode.h numbers them"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "groundup._native", "The native core: tokenizer, and passes over rows of float32.",
                                 -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native() {
    return guarded([] {
        Owned module(PyModule_Create(&module_definition));
        buffer_type = make_type(module.get(), &buffer_spec);
        const std::pair<const char*, PyTypeObject*> types[] = {
            {"Buffer", buffer_type},
            {"Encoder", make_type(module.get(), &encoder_spec)},
            {"WordCounter", make_type(module.get(), &counter_spec)},
        };
        for (const auto& [name, type] : types) {
            PyObject* object = reinterpret_cast<PyObject*>(type);
            if (PyModule_AddObjectRef(module.get(), name, object) != 0) throw PythonError();
        }
        return module.give();
    });
}
