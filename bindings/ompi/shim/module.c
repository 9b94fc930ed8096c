/* The modules that send: descriptors, convertors, peers. */
#include "shim.h"

typedef struct {
    mca_btl_base_descriptor_t base;
    mca_btl_base_segment_t segments[2];
    mca_btl_base_module_t *module;
    struct mca_btl_base_endpoint_t *endpoint;
    unsigned char data[] __attribute__((aligned(16)));
} esp_frag_t;

static mca_btl_base_descriptor_t *frag_new(size_t room, uint32_t flags)
{
    esp_frag_t *frag = malloc(sizeof *frag + room);
    if (NULL == frag) {
        return NULL;
    }
    memset(frag, 0, sizeof *frag);
    OBJ_CONSTRUCT(&frag->base, mca_btl_base_descriptor_t);
    frag->base.des_segments = frag->segments;
    frag->base.des_segment_count = 1;
    frag->base.order = MCA_BTL_NO_ORDER;
    frag->base.des_flags = flags;
    frag->segments[0].seg_addr.pval = frag->data;
    frag->segments[0].seg_len = room;
    return &frag->base;
}

static int frag_free(mca_btl_base_module_t *module, mca_btl_base_descriptor_t *descriptor)
{
    OBJ_DESTRUCT(descriptor);
    free(descriptor);
    return OPAL_SUCCESS;
}

static int add_procs(mca_btl_base_module_t *module, size_t count, struct opal_proc_t **procs,
                     struct mca_btl_base_endpoint_t **endpoints, opal_bitmap_t *reachable)
{
    const opal_process_name_t own = OPAL_PROC_MY_NAME;
    const int onesided = module == &esp_modules[ESP_ONESIDED];
    for (size_t i = 0; i < count; ++i) {
        const opal_process_name_t name = procs[i]->proc_name;
        struct mca_btl_base_endpoint_t found;
        /* Processes of other jobs (MPI_Comm_spawn, MPI_Comm_connect) are left to other transports,
         * and this process to `self`. */
        if (name.jobid != own.jobid || (name.vpid == own.vpid && !onesided)) {
            continue;
        }
        if (name.vpid == own.vpid) {
            esp_own_endpoint(&found);
        } else {
            void *entry;
            size_t length;
            const int number = onesided ? -1 : (int) (module - esp_modules);
            const int reached = 0 == esp_shim_modex_entry(name.vpid, &entry, &length)
                                && 0 == esp_add(number, name.vpid, entry, length, &found);
            esp_shim_free(entry);
            if (!reached) {
                continue;
            }
        }
        struct mca_btl_base_endpoint_t *endpoint = malloc(sizeof *endpoint);
        if (NULL == endpoint) {
            return OPAL_ERR_OUT_OF_RESOURCE;
        }
        *endpoint = found;
        endpoints[i] = endpoint;
        if (NULL != reachable) {
            opal_bitmap_set_bit(reachable, i);
        }
    }
    return OPAL_SUCCESS;
}

/* Connections stay open: another module may use them, and messages may be in flight. */
static int del_procs(mca_btl_base_module_t *module, size_t count, struct opal_proc_t **procs,
                     struct mca_btl_base_endpoint_t **endpoints)
{
    for (size_t i = 0; i < count; ++i) {
        free(endpoints[i]);
        endpoints[i] = NULL;
    }
    return OPAL_SUCCESS;
}

static int finalize(mca_btl_base_module_t *module)
{
    /* The modules end together: nothing is sent after the first is finalized. */
    esp_stop();
    return OPAL_SUCCESS;
}

static mca_btl_base_descriptor_t *alloc(mca_btl_base_module_t *module,
                                        struct mca_btl_base_endpoint_t *endpoint, uint8_t order,
                                        size_t size, uint32_t flags)
{
    if (size > esp_max_message(module)) {
        return NULL;
    }
    return frag_new(size, flags);
}

static mca_btl_base_descriptor_t *prepare_src(mca_btl_base_module_t *module,
                                              struct mca_btl_base_endpoint_t *endpoint,
                                              opal_convertor_t *convertor, uint8_t order,
                                              size_t reserve, size_t *size, uint32_t flags)
{
    const size_t limit = esp_max_message(module);
    if (reserve > limit) {
        return NULL;
    }
    if (*size > limit - reserve) {
        *size = limit - reserve;
    }
    if (opal_convertor_need_buffers(convertor)) {
        mca_btl_base_descriptor_t *descriptor = frag_new(reserve + *size, flags);
        if (NULL == descriptor) {
            return NULL;
        }
        esp_frag_t *frag = (esp_frag_t *) descriptor;
        struct iovec part = {.iov_base = frag->data + reserve, .iov_len = *size};
        uint32_t parts = 1;
        size_t packed = *size;
        if (opal_convertor_pack(convertor, &part, &parts, &packed) < 0) {
            frag_free(module, descriptor);
            return NULL;
        }
        *size = packed;
        frag->segments[0].seg_len = reserve + packed;
        return descriptor;
    }
    mca_btl_base_descriptor_t *descriptor = frag_new(reserve, flags);
    if (NULL == descriptor) {
        return NULL;
    }
    esp_frag_t *frag = (esp_frag_t *) descriptor;
    void *data;
    opal_convertor_get_current_pointer(convertor, &data);
    frag->segments[1].seg_addr.pval = data;
    frag->segments[1].seg_len = *size;
    descriptor->des_segment_count = 2;
    return descriptor;
}

/* Completes a send: calls the callback if `callback` is set, and frees the descriptor if this
 * component owns it. */
static void finish(mca_btl_base_descriptor_t *descriptor, int callback, int status)
{
    const esp_frag_t *frag = (const esp_frag_t *) descriptor;
    mca_btl_base_module_t *module = frag->module;
    const int own = descriptor->des_flags & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP;
    if (callback && NULL != descriptor->des_cbfunc) {
        descriptor->des_cbfunc(module, frag->endpoint, descriptor, status);
    }
    if (own) {
        frag_free(module, descriptor);
    }
}

static int send_frag(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint,
                     mca_btl_base_descriptor_t *descriptor, mca_btl_base_tag_t tag)
{
    ((esp_frag_t *) descriptor)->module = module;
    ((esp_frag_t *) descriptor)->endpoint = endpoint;
    const int call = descriptor->des_flags & MCA_BTL_DES_SEND_ALWAYS_CALLBACK;
    /* Set before the call: another thread may have sent a queued descriptor when it returns. */
    descriptor->des_flags |= MCA_BTL_DES_SEND_ALWAYS_CALLBACK;
    int rc = esp_send(*endpoint, tag, descriptor->des_segments, descriptor->des_segment_count,
                      descriptor);
    if (0 == rc) {
        return OPAL_SUCCESS;
    }
    if (rc < 0) {
        if (!call) {
            descriptor->des_flags &= ~MCA_BTL_DES_SEND_ALWAYS_CALLBACK;
        }
        return rc;
    }
    finish(descriptor, call, OPAL_SUCCESS);
    return 1;
}

static int sendi(mca_btl_base_module_t *module, struct mca_btl_base_endpoint_t *endpoint,
                 opal_convertor_t *convertor, void *header, size_t header_size, size_t payload_size,
                 uint8_t order, uint32_t flags, mca_btl_base_tag_t tag,
                 mca_btl_base_descriptor_t **descriptor)
{
    if (0 == payload_size || !opal_convertor_need_buffers(convertor)) {
        void *data = NULL;
        if (payload_size > 0) {
            opal_convertor_get_current_pointer(convertor, &data);
        }
        const mca_btl_base_segment_t segments[2] = {
            {.seg_addr.pval = header, .seg_len = header_size},
            {.seg_addr.pval = data, .seg_len = payload_size},
        };
        if (1 == esp_send(*endpoint, tag, segments, payload_size > 0 ? 2 : 1, NULL)) {
            return OPAL_SUCCESS;
        }
    }
    if (NULL != descriptor) {
        *descriptor = alloc(module, endpoint, order, header_size + payload_size, flags);
    }
    return OPAL_ERR_RESOURCE_BUSY;
}

void esp_fill_sends(mca_btl_base_module_t *module)
{
    module->btl_add_procs = add_procs;
    module->btl_del_procs = del_procs;
    module->btl_finalize = finalize;
    module->btl_alloc = alloc;
    module->btl_free = frag_free;
    module->btl_prepare_src = prepare_src;
    module->btl_send = send_frag;
    module->btl_sendi = sendi;
    module->btl_dump = mca_btl_base_dump;
}

/* --- Functions that Rust calls --- */

void esp_shim_segments(void *frag, const mca_btl_base_segment_t **segments, size_t *count)
{
    const mca_btl_base_descriptor_t *descriptor = frag;
    *segments = descriptor->des_segments;
    *count = descriptor->des_segment_count;
}

void esp_shim_sent(void *frag, int status)
{
    finish(frag, 1, status);
}

void esp_shim_deliver(uint32_t module, struct esp_endpoint source, uint8_t tag, void *data,
                      size_t length)
{
    mca_btl_base_segment_t segment = {.seg_addr.pval = data, .seg_len = length};
    /* A tag without a receiver comes from a peer that does not run this component. */
    if (tag >= MCA_BTL_TAG_MAX || module >= ESP_SENDING) {
        return;
    }
    const mca_btl_active_message_callback_t *receiver = &mca_btl_base_active_message_trigger[tag];
    if (NULL == receiver->cbfunc) {
        return;
    }
#if OPAL_MAJOR_VERSION == 4
    mca_btl_base_descriptor_t descriptor = {.des_segments = &segment, .des_segment_count = 1};
    receiver->cbfunc(&esp_modules[module], tag, &descriptor, receiver->cbdata);
#else
    /* Only Open MPI's emulation of operations on memory by messages needs an endpoint, for the
     * reply. */
    const int replies = tag >= MCA_BTL_BASE_TAG_RDMA && tag <= MCA_BTL_BASE_TAG_RDMA_RESP;
    const mca_btl_base_receive_descriptor_t descriptor = {
        .endpoint = replies ? (struct mca_btl_base_endpoint_t *) esp_source(source) : NULL,
        .des_segments = &segment,
        .des_segment_count = 1,
        .tag = tag,
        .cbdata = receiver->cbdata,
    };
    receiver->cbfunc(&esp_modules[module], &descriptor);
#endif
}
